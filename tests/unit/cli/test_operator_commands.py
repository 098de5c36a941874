"""How the operator's commands read their options and print what they were told, without a gateway."""

import pytest

from gateway.cli.main import parser
from gateway.cli.printing import age, facts, table
from gateway.cli.remote import spaced

MEMBER = f"-{'d' * 21}:{'i' * 32}"
ID = f"-{'i' * 31}"


@pytest.mark.parametrize("name", [MEMBER, ID, f"{'d' * 22}:{ID}"])
def test_an_id_that_begins_with_a_hyphen_is_no_option(name):
    parsed = parser().parse_args(spaced(["tasks", "show", name, "--json"]))
    assert (parsed.id, parsed.json) == (name, True)


def test_words_of_other_commands_stay_as_they_are():
    words = ["serve", "--", "prog", ID]
    assert spaced(words) == words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--admin", "127.0.0.1:8081"], "must be http://HOST:PORT"),
        (["--admin", "http://user:pass@h"], "must be http://HOST:PORT"),
        (["--token", "SECRET-123"], "must be env:NAME or file:PATH"),
        (["--limit", "0"], "must be a number of 1 or more"),
        (["--older-than", "7"], "must be a number with s, m, h or d"),
        (["--state", "gone"], "invalid choice: 'gone'"),
    ],
)
def test_an_option_that_makes_no_sense_ends_with_2(capsys, options, message):
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(["tasks", "ls", *options])
    err = capsys.readouterr().err
    assert caught.value.code == 2
    assert message in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["on", "--reason", "x"], "one of the arguments --all --upstream --tool --tenant is required"),
        (["on", "--all", "--upstream", "u", "--reason", "x"], "not allowed with argument --all"),
        (["on", "--tool", "charge", "--reason", "x"], "must be UPSTREAM/TOOL"),
        (["off", "--all"], "the following arguments are required: --reason"),
    ],
)
def test_a_switch_has_one_scope_and_a_reason(capsys, options, message):
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(["switch", *options])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_an_age_is_read_in_seconds():
    parse = parser().parse_args
    ages = [parse(["tasks", "ls", "--older-than", text]).older_than for text in ("90s", "10m", "2h", "7d")]
    assert ages == [90, 600, 7200, 604_800]


def test_a_table_lines_up_and_steers_no_terminal():
    assert (
        table(("A", "LONGER"), [("x\x1b[2J", "y"), ("wide cell", "")]) == "A          LONGER\nx?[2J      y\nwide cell"
    )


def test_facts_are_flat_and_times_are_read_by_people():
    values = {"a": {"at_ms": 1_767_225_600_000, "ttl_ms": 5000, "none": None}, "list": [{"x": 1}], "on": False}
    assert [line.split() for line in facts(values).splitlines()[1:]] == [
        ["a.at", "2026-01-01T00:00:00.000Z"],
        ["a.ttl", "5000"],
        ["list.0.x", "1"],
        ["on", "False"],
    ]


@pytest.mark.parametrize(
    ("ms", "told"), [(-5, "0s"), (59_999, "59s"), (60_000, "1m"), (7_200_000, "2h"), (200_000_000, "2d")]
)
def test_an_age_is_told_in_its_largest_unit(ms, told):
    assert age(0, ms) == told
