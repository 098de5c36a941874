"""The shape of a policy file: defaults, bounds, and what contradicts itself."""

import pytest
from pydantic import ValidationError

from gateway.policy.model import NOT_BUILT, NOT_BUILT_VALUES, ONLY_DEFAULTS, PolicyFile, Settings, ToolRule
from gateway.policy.shape import FINDINGS, Finding, refuse
from tests.requirements import requirement

DEFAULTS = {
    "task_support": "forbidden",
    "advertise_2025": True,
    "effect": "consequential",
    "ttl_min_s": 60,
    "ttl_default_s": 3600,
    "ttl_max_s": 86400,
    "keep_result_s": 600,
    "deadline_s": 900,
    "inline_ms": 1000,
    "poll_interval_ms": 2000,
    "observe_min_ms": 500,
    "observe_max_ms": 10_000,
    "observe_budget_s": 300,
    "poll_burst": 3,
    "on_fast_poll": "delay",
    "poll_abuse": 100,
    "status_per_min": 600,
    "create_per_min": 60,
    "result_per_min": 300,
    "result_bytes_per_min": 268435456,
    "reconcile_per_min": 30,
    "failed_lookups_per_min": 30,
    "max_concurrent_per_principal": 10,
    "max_concurrent_per_tenant": 100,
    "max_concurrent_upstream": 50,
    "max_arguments_bytes": 262144,
    "max_inline_result_bytes": 262144,
    "max_result_bytes": 67108864,
    "on_lost": "unknown",
    "resend_on_session_404": True,
    "input_phase": "during",
    "assume_elicitation": False,
    "input_timeout_s": 600,
    "fallback": "sync",
    "sync_timeout_s": 50,
    "on_switch": "refuse",
    "create_scopes": (),
    "read_scopes": (),
    "cancel_scopes": (),
    "ledger_retention_days": 90,
    "redact": (),
    "arguments_schema": "upstream",
    "authorize": (),
    "order": (),
    "max_range_days": None,
    "sensitive_fields": (),
    "operation": None,
    "job": None,
}

TTL_ORDER = "ttl_min_s, ttl_default_s and ttl_max_s must be in this order"
TTL_FIT = "deadline_s plus keep_result_s must fit into ttl_max_s, or results would expire unseen"
RETRY = 'on_lost = "retry" would repeat a consequential effect: declare the effect read_only or idempotent'


def refused(values: dict[str, object]) -> list[tuple[tuple[str | int, ...], str]]:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(values)
    return [(error["loc"], error["type"]) for error in caught.value.errors()]


def contradictions(**values: object) -> list[Finding]:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(values)
    (error,) = caught.value.errors()
    assert (error["type"], error["loc"]) == (FINDINGS, ())
    return list(error["ctx"][FINDINGS])


@requirement("BR-3")
def test_upstreams_are_asked_no_more_seldom_than_often():
    message = "observe_min_ms must not be larger than observe_max_ms"
    assert contradictions(observe_min_ms=2, observe_max_ms=1) == [
        Finding((("observe_min_ms",), ("observe_max_ms",)), message)
    ]
    assert Settings(observe_min_ms=1, observe_max_ms=1).observe_max_ms == 1


def test_every_setting_has_its_documented_default():
    assert Settings().model_dump() == DEFAULTS


@pytest.mark.parametrize(
    ("key", "least", "refusal"),
    [
        ("ttl_min_s", 1, 0),
        ("deadline_s", 1, 0),
        ("keep_result_s", 0, -1),
        ("inline_ms", 0, -1),
        ("poll_interval_ms", 1, 0),
        ("observe_min_ms", 1, 0),
        ("observe_budget_s", 1, 0),
        ("poll_burst", 1, 0),
        ("poll_abuse", 1, 0),
        ("status_per_min", 1, 0),
        ("create_per_min", 1, 0),
        ("result_per_min", 1, 0),
        ("result_bytes_per_min", 1, 0),
        ("reconcile_per_min", 1, 0),
        ("failed_lookups_per_min", 1, 0),
        ("max_concurrent_per_principal", 1, 0),
        ("max_concurrent_per_tenant", 1, 0),
        ("max_concurrent_upstream", 1, 0),
        ("max_arguments_bytes", 2, 1),
        ("max_inline_result_bytes", 2, 1),
        ("max_result_bytes", 2, 1),
        ("input_timeout_s", 1, 0),
        ("sync_timeout_s", 1, 0),
        ("ledger_retention_days", 1, 0),
    ],
)
def test_a_number_is_taken_down_to_its_least_value_and_no_further(key, least, refusal):
    assert getattr(Settings.model_validate({key: least}), key) == least
    assert refused({key: refusal})[0][0][0] == key


@pytest.mark.parametrize("key", ["ttl_default_s", "ttl_max_s"])
def test_the_other_ttls_are_positive_too(key):
    assert refused({key: 0}) == [((key,), "greater_than_equal")]


def test_the_inline_wait_ends_before_clients_time_out():
    assert Settings(inline_ms=50_000).inline_ms == 50_000
    assert refused({"inline_ms": 50_001}) == [(("inline_ms",), "less_than_equal")]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("task_support", ["forbidden", "optional", "required"]),
        ("effect", ["read_only", "idempotent", "consequential"]),
        ("on_fast_poll", ["delay", "reject"]),
        ("on_lost", ["unknown"]),
        ("input_phase", ["during", "before"]),
        ("fallback", ["sync", "status_tools", "handoff", "refuse"]),
        ("on_switch", ["refuse", "sync"]),
    ],
)
def test_a_word_is_one_of_those_that_are_documented(key, words):
    assert [getattr(Settings.model_validate({key: word}), key) for word in words] == words
    assert refused({key: "other"}) == [((key,), "literal_error")]


def test_a_poll_interval_may_be_the_word_adaptive():
    assert Settings(poll_interval_ms="adaptive").poll_interval_ms == "adaptive"


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("deadline_s", "900", "int_type"),
        ("deadline_s", 900.0, "int_type"),
        ("deadline_s", True, "int_type"),
        ("advertise_2025", 1, "bool_type"),
        ("advertise_2025", "yes", "bool_type"),
        ("arguments_schema", 1, "string_type"),
        ("redact", "/a", "tuple_type"),
        ("operation", [], "model_type"),
        ("unheard_of", 1, "extra_forbidden"),
    ],
)
def test_types_are_not_guessed_and_keys_not_made_up(key, value, kind):
    assert refused({key: value}) == [((key,), kind)]


def test_arrays_are_taken_as_toml_writes_them_and_their_items_are_not_guessed():
    taken = Settings.model_validate(
        {"redact": ["/a", "/b"], "order": [["/from", "/to"]], "authorize": [{"argument": "/id", "in_claim": "ids"}]}
    )
    assert taken.redact == ("/a", "/b")
    assert taken.order == (("/from", "/to"),)
    assert taken.authorize == ({"argument": "/id", "in_claim": "ids"},)
    assert refused({"redact": ["/a", 1]}) == [(("redact", 1), "string_type")]
    assert refused({"order": [["/from"]]}) == [(("order", 0, 1), "missing")]


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(
    ("values", "finding"),
    [
        ({"ttl_min_s": 3601}, Finding((("ttl_default_s",), ("ttl_min_s",), ("ttl_max_s",)), TTL_ORDER)),
        ({"ttl_default_s": 59}, Finding((("ttl_default_s",), ("ttl_min_s",), ("ttl_max_s",)), TTL_ORDER)),
        ({"ttl_max_s": 3599}, Finding((("ttl_default_s",), ("ttl_min_s",), ("ttl_max_s",)), TTL_ORDER)),
        ({"deadline_s": 85_801}, Finding((("deadline_s",), ("keep_result_s",), ("ttl_max_s",)), TTL_FIT)),
        ({"keep_result_s": 85_501}, Finding((("deadline_s",), ("keep_result_s",), ("ttl_max_s",)), TTL_FIT)),
        ({"on_lost": "retry"}, Finding((("on_lost",), ("effect",)), RETRY)),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(values, finding):
    assert contradictions(**values) == [finding]


@requirement("OWN-CONFIG")
def test_all_contradictions_are_found_at_once():
    found = contradictions(ttl_min_s=10, ttl_default_s=5, ttl_max_s=20, on_lost="retry")
    assert [finding.message for finding in found] == [TTL_ORDER, TTL_FIT, RETRY]


@pytest.mark.parametrize(
    "values",
    [
        {"ttl_min_s": 3600, "ttl_default_s": 3600, "ttl_max_s": 3600},
        {"ttl_min_s": 1, "ttl_default_s": 1, "ttl_max_s": 1, "deadline_s": 1, "keep_result_s": 0},
        {"deadline_s": 85_800},
        {"keep_result_s": 85_500},
        {"on_lost": "retry", "effect": "read_only"},
        {"on_lost": "retry", "effect": "idempotent"},
        {"on_lost": "unknown", "effect": "consequential"},
    ],
)
def test_settings_that_just_fit_are_taken(values):
    assert Settings.model_validate(values).model_dump(exclude_unset=True) == values


def test_findings_are_raised_together_and_nothing_is_raised_without_any():
    refuse([])
    with pytest.raises(ValueError, match=r"^a\.0: is wrong; b: is wrong too$"):
        refuse(iter([Finding((("a", 0), ("c",)), "is wrong"), Finding((("b",),), "is wrong too")]))


def test_settings_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        Settings().deadline_s = 1


@requirement("OWN-QUIET")
def test_what_was_written_is_in_no_message_of_the_model():
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(
            {"deadline_s": "SECRET-123", "effect": "SECRET-123", "redact": ["a", {"b": "SECRET-123"}]}
        )
    assert caught.value.error_count() == 3
    assert "SECRET-123" not in str(caught.value)


def test_a_rule_has_a_match_and_everything_else_is_a_change():
    rule = ToolRule.model_validate({"match": "build_*", "effect": "read_only", "inline_ms": 0})
    assert rule.match == "build_*"
    assert rule.changes == {"effect": "read_only", "inline_ms": 0}
    assert ToolRule(match="x").changes == {}


@pytest.mark.parametrize(
    ("values", "kind"), [({}, "missing"), ({"match": ""}, "string_too_short"), ({"match": 1}, "string_type")]
)
def test_a_rule_without_a_name_or_glob_is_refused(values, kind):
    with pytest.raises(ValidationError) as caught:
        ToolRule.model_validate(values)
    assert [(error["loc"], error["type"]) for error in caught.value.errors()] == [(("match",), kind)]


def test_a_file_needs_its_version_and_nothing_else():
    file = PolicyFile.model_validate({"version": 1})
    assert file.model_dump() == {
        "version": 1,
        "owners": (),
        "pins": None,
        "defaults": DEFAULTS,
        "tools": (),
        "rollout": None,
    }


@pytest.mark.parametrize("values", [{}, {"version": 2}, {"version": "1"}])
def test_a_file_of_another_version_is_refused(values):
    with pytest.raises(ValidationError) as caught:
        PolicyFile.model_validate(values)
    assert [error["loc"] for error in caught.value.errors()] == [("version",)]


def test_every_key_without_effect_is_a_key():
    assert NOT_BUILT - {"pins", "rollout"} - Settings.model_fields.keys() == set()
    assert NOT_BUILT & {"pins", "rollout"} <= PolicyFile.model_fields.keys()


def test_a_value_without_effect_belongs_to_a_key_that_has_one():
    assert NOT_BUILT_VALUES == {"poll_interval_ms": "adaptive"}
    assert {"max_concurrent_upstream"} == ONLY_DEFAULTS
    assert NOT_BUILT & (NOT_BUILT_VALUES.keys() | ONLY_DEFAULTS) == set()
