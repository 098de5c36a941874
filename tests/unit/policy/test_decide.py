"""How a call is served: the whole matrix, which rule wins, and what a rule changes."""

import pytest
from pydantic import ValidationError

from gateway.policy.decide import BUILT_IN, Ask, Decision, Mode, Policy, overlay
from gateway.policy.model import PolicyFile, Settings, ToolRule
from tests.requirements import requirement

SUPPORTS = ("forbidden", "optional", "required")


def policy(defaults: dict[str, object] | None = None, *rules: dict[str, object]) -> Policy:
    return Policy(PolicyFile.model_validate({"version": 1, "defaults": defaults or {}, "tools": list(rules)}), "p.toml")


def with_support(support: str, inline_ms: int = 1000) -> Policy:
    return policy({"task_support": support, "inline_ms": inline_ms})


@requirement("T25-CAP-7")
@pytest.mark.parametrize(
    ("support", "ask", "mode", "reason"),
    [
        ("forbidden", Ask.TASK_2025, Mode.REFUSE, "task_forbidden"),
        ("forbidden", Ask.PLAIN_2025, Mode.PLAIN, ""),
        ("forbidden", Ask.EXTENSION, Mode.PLAIN, ""),
        ("forbidden", Ask.WITHOUT_TASKS, Mode.PLAIN, ""),
        ("optional", Ask.TASK_2025, Mode.TASK, ""),
        ("optional", Ask.PLAIN_2025, Mode.SYNC, ""),
        ("optional", Ask.EXTENSION, Mode.INLINE, ""),
        ("optional", Ask.WITHOUT_TASKS, Mode.SYNC, ""),
        ("required", Ask.TASK_2025, Mode.TASK, ""),
        ("required", Ask.PLAIN_2025, Mode.REFUSE, "task_required"),
        ("required", Ask.EXTENSION, Mode.INLINE, ""),
        ("required", Ask.WITHOUT_TASKS, Mode.REFUSE, "task_required"),
    ],
)
def test_each_kind_of_caller_is_served_as_the_task_support_says(support, ask, mode, reason):
    made = with_support(support)
    assert made.decide("tool", ask) == Decision(mode, made.defaults, "p.toml: [defaults]", reason)


@requirement("T25-CAP-7")
@pytest.mark.parametrize("inline_ms", [0, 1000])
@pytest.mark.parametrize("support", SUPPORTS)
def test_a_task_augmented_call_becomes_a_task_or_is_refused(support, inline_ms):
    mode = with_support(support, inline_ms).decide("tool", Ask.TASK_2025).mode
    assert mode is (Mode.REFUSE if support == "forbidden" else Mode.TASK)


@pytest.mark.parametrize("inline_ms", [0, 1000])
def test_a_required_tool_is_never_called_while_the_caller_waits_for_all_of_it(inline_ms):
    made = with_support("required", inline_ms)
    assert {made.decide("tool", ask).mode for ask in Ask}.isdisjoint({Mode.SYNC, Mode.PLAIN})


@pytest.mark.parametrize("inline_ms", [0, 1000])
def test_a_forbidden_tool_never_becomes_a_task(inline_ms):
    made = with_support("forbidden", inline_ms)
    assert {made.decide("tool", ask).mode for ask in Ask} == {Mode.REFUSE, Mode.PLAIN}


@pytest.mark.parametrize(("inline_ms", "mode"), [(0, Mode.TASK), (1, Mode.INLINE), (50_000, Mode.INLINE)])
@pytest.mark.parametrize("support", ["optional", "required"])
def test_without_an_inline_wait_the_task_is_handed_out_at_once(support, inline_ms, mode):
    assert with_support(support, inline_ms).decide("tool", Ask.EXTENSION).mode is mode


@pytest.mark.parametrize(
    ("ask", "mode"),
    [(Ask.TASK_2025, Mode.TASK), (Ask.PLAIN_2025, Mode.SYNC), (Ask.WITHOUT_TASKS, Mode.SYNC)],
)
def test_no_inline_wait_changes_nothing_for_other_callers(ask, mode):
    assert with_support("optional", 0).decide("tool", ask).mode is mode


def test_a_decision_carries_the_settings_and_the_rule_that_made_it():
    made = policy({"deadline_s": 100}, {"match": "charge", "task_support": "required", "deadline_s": 300})
    decision = made.decide("charge", Ask.WITHOUT_TASKS)
    assert decision.settings == Settings(task_support="required", deadline_s=300)
    assert decision.rule == 'p.toml: [[tools]] match = "charge"'
    assert made.decide("other", Ask.WITHOUT_TASKS) == Decision(
        Mode.PLAIN, Settings(deadline_s=100), "p.toml: [defaults]"
    )


@pytest.mark.parametrize(
    ("tool", "rule"),
    [
        ("build_report", "build_report"),
        ("build_report_2", "build_rep*"),
        ("build_other", "build_*"),
        ("build_", "build_*"),
        ("ship", "*"),
        ("Build_report", "*"),
        ("a?c", "a?c"),
        ("abc", "a?c"),
        ("x1", "x[0-9]"),
        ("x[0-9]", "x[0-9]"),
        ("xa", "*"),
    ],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_an_exact_name_wins_over_a_glob_and_a_longer_glob_over_a_shorter_one(tool, rule, backwards):
    matches = ["*", "build_*", "build_rep*", "build_report", "a?c", "x[0-9]"]
    rules = [{"match": match} for match in (reversed(matches) if backwards else matches)]
    assert policy({}, *rules).settings(tool)[1] == f'p.toml: [[tools]] match = "{rule}"'


def test_an_exact_name_wins_over_a_longer_glob():
    made = policy({}, {"match": "[b]uild_*", "inline_ms": 1}, {"match": "build_a", "inline_ms": 2})
    assert made.settings("build_a")[0].inline_ms == 2
    assert made.settings("build_b")[0].inline_ms == 1


def test_of_two_equally_long_globs_the_first_wins():
    made = policy({}, {"match": "a*c", "inline_ms": 1}, {"match": "ab*", "inline_ms": 2})
    assert made.settings("abc")[0].inline_ms == 1


def test_a_name_is_matched_as_a_whole():
    made = policy({}, {"match": "build"}, {"match": "b?"})
    assert [made.settings(tool)[1] for tool in ("rebuild", "builder", "b", "abc")] == ["p.toml: [defaults]"] * 4


def test_a_rule_changes_what_it_names_and_inherits_the_rest_of_the_defaults():
    defaults = {"task_support": "optional", "effect": "read_only", "deadline_s": 100, "redact": ["/a"]}
    made = policy(defaults, {"match": "x", "effect": "idempotent", "on_lost": "retry"})
    inherited = Settings(task_support="optional", deadline_s=100, redact=("/a",))
    assert made.settings("x")[0] == inherited.model_copy(update={"effect": "idempotent", "on_lost": "retry"})
    assert made.settings("y")[0] == inherited.model_copy(update={"effect": "read_only"})


def test_a_rule_may_name_a_default_again_and_it_counts():
    made = policy({"task_support": "required"}, {"match": "x", "task_support": "forbidden"})
    assert made.settings("x")[0].task_support == "forbidden"


def test_only_the_best_rule_counts():
    made = policy({}, {"match": "x", "inline_ms": 1}, {"match": "*", "deadline_s": 7})
    assert made.settings("x")[0] == Settings(inline_ms=1)


@pytest.mark.parametrize(
    ("defaults", "changes"),
    [
        ({"effect": "read_only", "on_lost": "retry"}, {"effect": "consequential"}),
        ({"ttl_max_s": 4000}, {"deadline_s": 3401}),
        ({}, {"ttl_default_s": 59}),
        ({}, {"unheard_of": 1}),
    ],
)
def test_a_rule_that_makes_no_sense_on_top_of_the_defaults_is_refused(defaults, changes):
    with pytest.raises(ValidationError):
        overlay(Settings.model_validate(defaults), ToolRule.model_validate({"match": "x", **changes}))


def test_the_same_name_gets_the_same_answer_again():
    made = policy({}, {"match": "x*", "inline_ms": 1})
    first = made.settings("xy")
    assert made.settings("xy") is first
    assert first == (Settings(inline_ms=1), 'p.toml: [[tools]] match = "x*"')


def test_what_is_remembered_of_names_is_bounded_and_names_beyond_it_are_still_answered():
    made = policy({}, {"match": "x*", "inline_ms": 1})
    for number in range(10_000):
        made.settings(f"x{number}")
    assert [made.settings(name)[0].inline_ms for name in ("x0", "x10000", "y", "x10000")] == [1, 1, 1000, 1]
    assert len(made._found) == 10_000
    assert "x9999" in made._found
    assert made._found.keys().isdisjoint({"x10000", "y"})


def test_without_a_policy_every_tool_may_be_a_task():
    assert PolicyFile(version=1, defaults=Settings(task_support="optional")) == BUILT_IN
    assert Policy(BUILT_IN, "built-in policy").decide("any", Ask.EXTENSION) == Decision(
        Mode.INLINE, Settings(task_support="optional"), "built-in policy: [defaults]"
    )
