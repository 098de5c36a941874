"""Keys: ownership in every one of them, and nothing a client can write in any."""

from dataclasses import replace

import pytest

from gateway.core.model import Owner
from gateway.store.keys import Keys, Ref, digest, may_live_for_ever, owner_digest, tenant_digest
from tests.records import ID, OWNER
from tests.requirements import requirement


@requirement("OWN-KEY")
@pytest.mark.parametrize("field", ["issuer", "subject", "tenant", "upstream"])
def test_every_part_of_an_owner_makes_another_key(field):
    assert owner_digest(replace(OWNER, **{field: "x"})) != owner_digest(OWNER)


@requirement("OWN-KEY")
def test_parts_cannot_be_shifted_into_each_other():
    assert digest("a:b", "c") != digest("a", "b:c")
    assert digest("ab", "c") != digest("a", "bc")
    assert owner_digest(Owner("i", "a:b", "c", "u")) != owner_digest(Owner("i", "a", "b:c", "u"))
    assert digest("\ud800") != digest("\ud801")


def test_a_tenant_is_an_issuers():
    assert tenant_digest(OWNER) == tenant_digest(replace(OWNER, subject="x", upstream="y"))
    assert tenant_digest(OWNER) != tenant_digest(replace(OWNER, issuer="x"))


@pytest.mark.parametrize("odd", ["", "short", "a b" * 10, "é" * 20, "x" * 65, "{s1}" * 6, "a:b" * 10, "x" * 20 + "\n"])
def test_an_id_that_no_gateway_made_names_nothing(odd):
    assert Ref(OWNER, odd).member == f"{owner_digest(OWNER)}:-"
    assert Keys("mtg").session(OWNER, odd).endswith(":-")


def test_all_keys_of_a_shard_carry_its_tag_and_differ():
    keys, ref = Keys("p"), Ref(OWNER, ID)
    names = [
        *(keys.task(ref), keys.operation(ref), keys.result(ref), keys.arguments(ref), keys.tombstone(ref)),
        *(keys.active_of_owner(OWNER), keys.active_of_tenant(OWNER), keys.running("u"), keys.index(OWNER)),
        *(keys.due("u"), keys.watch("u"), keys.heartbeat("p"), keys.session(OWNER, ID), keys.channel),
    ]
    assert len(set(names)) == len(names)
    assert all(name.startswith("p:{s0}:") for name in names)
    assert [name for name in names if may_live_for_ever(name, "p")] == [keys.due("u"), keys.watch("u")]
