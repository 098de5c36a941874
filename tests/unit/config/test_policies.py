"""Loading policies: rules on top of defaults, contradictions, and keys without effect."""

import pytest

from gateway.policy.model import NOT_BUILT, Settings
from tests.requirements import requirement

UNBUILT = "has no effect in this release; remove it or set it to its default"
TTL_ORDER = "ttl_min_s, ttl_default_s and ttl_max_s must be in this order"
TTL_FIT = "deadline_s plus keep_result_s must fit into ttl_max_s, or results would expire unseen"
RETRY = 'on_lost = "retry" would repeat a consequential effect: declare the effect read_only or idempotent'


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(
    ("settings", "line", "key", "message"),
    [
        ("ttl_min_s = 4000", 3, "ttl_min_s", TTL_ORDER),
        ("ttl_default_s = 59", 3, "ttl_default_s", TTL_ORDER),
        ("ttl_max_s = 3599", 3, "ttl_max_s", TTL_ORDER),
        (
            "ttl_max_s = 100\nttl_min_s = 1\nttl_default_s = 101\nkeep_result_s = 0\ndeadline_s = 9",
            5,
            "ttl_default_s",
            TTL_ORDER,
        ),
        ("deadline_s = 85801", 3, "deadline_s", TTL_FIT),
        ("inline_ms = 1\nkeep_result_s = 86400", 4, "keep_result_s", TTL_FIT),
        ("ttl_default_s = 60\nttl_max_s = 1499", 4, "ttl_max_s", TTL_FIT),
        ('effect = "consequential"\non_lost = "retry"', 4, "on_lost", RETRY),
    ],
)
def test_a_contradiction_is_reported_at_a_key_that_the_file_writes(check, settings, line, key, message):
    assert check(f"version = 1\n[defaults]\n{settings}\n") == [f"p.toml:{line}: defaults.{key}: {message}"]
    assert check(f'version = 1\n[[tools]]\n{settings}\nmatch = "x"\n') == [f"p.toml:{line}: tools.0.{key}: {message}"]


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(
    ("defaults", "rule", "problem"),
    [
        ('effect = "read_only"\non_lost = "retry"', 'effect = "consequential"', f"tools.0.effect: {RETRY}"),
        ("ttl_max_s = 4000", "deadline_s = 3401", f"tools.0.deadline_s: {TTL_FIT}"),
        ("ttl_min_s = 100\ndeadline_s = 50", "ttl_default_s = 99", f"tools.0.ttl_default_s: {TTL_ORDER}"),
    ],
)
def test_a_rule_that_contradicts_what_it_inherits_is_reported_within_its_entry(check, defaults, rule, problem):
    lines = defaults.count("\n")
    text = f'version = 1\n[defaults]\n{defaults}\n\n[[tools]]\nmatch = "x"\n{rule}\n\n[[tools]]\nmatch = "y"\n'
    assert check(text) == [f"p.toml:{lines + 7}: {problem}"]


@requirement("OWN-CONFIG")
def test_a_contradiction_of_the_defaults_is_not_repeated_for_each_rule(check):
    text = """\
version = 1
defaults = { ttl_max_s = 100 }
[[tools]]
match = "a"
inline_ms = 0
[[tools]]
match = "b"
effect = "consequential"
on_lost = "retry"
"""
    assert check(text) == [
        f"p.toml:2: defaults.ttl_max_s: {TTL_FIT}",
        f"p.toml:2: defaults.ttl_max_s: {TTL_ORDER}",
        f"p.toml:9: tools.1.on_lost: {RETRY}",
    ]


@requirement("OWN-CONFIG")
def test_a_rule_is_measured_against_the_defaults_that_were_not_refused(check):
    text = """\
version = 1
[defaults]
deadline_s = "SECRET-123"
effect = "read_only"
[[tools]]
match = "a"
on_lost = "retry"
keep_result_s = 86_400
[[tools]]
match = "b"
deadline_s = 86_400
[[tools]]
match = "c"
deadline_s = 0
ttl_min_s = 3601
"""
    assert check(text) == [
        "p.toml:3: defaults.deadline_s: must be a valid integer",
        f"p.toml:11: tools.1.deadline_s: {TTL_FIT}",
        "p.toml:14: tools.2.deadline_s: must be greater than or equal to 1",
        f"p.toml:15: tools.2.ttl_min_s: {TTL_ORDER}",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("defaults = 5\n[[tools]]\nmatch = 'x'\n", "p.toml:2: defaults: must be a table"),
        ("[[defaults]]\n[[tools]]\nmatch = 'x'\n", "p.toml:2: defaults: must be a table"),
        ("tools = 5\n", "p.toml:2: tools: must be an array"),
        ("[tools]\nmatch = 'x'\n", "p.toml:2: tools: must be an array"),
        ("tools = [5]\n", "p.toml:2: tools.0: must be a table"),
        ("pin = 1\n", 'p.toml:2: pin: unknown key; did you mean "pins"?'),
        ("[owners]\n", "p.toml:2: owners: must be an array"),
        ("[[tools]]\nmatch = ''\n", "p.toml:3: tools.0.match: must have at least 1 character"),
        ("[[tools]]\nmatch = 5\n", "p.toml:3: tools.0.match: must be a valid string"),
        ("[[tools]]\nmatch = 'x'\n[tools.zzz]\n", "p.toml:4: tools.0.zzz: unknown key"),
        (
            "[defaults]\npoll_interval_ms = 0\n",
            "p.toml:3: defaults.poll_interval_ms: must be greater than or equal to 1, or must be 'adaptive'",
        ),
    ],
)
def test_an_odd_shape_is_a_problem_and_not_a_crash(check, text, problem):
    assert check(f"version = 1\n{text}") == [problem]


@requirement("OWN-CONFIG")
def test_unknown_keys_are_refused_at_every_level_with_the_nearest_one_that_exists(check):
    text = """\
version = 1
owner = []
[defualts]
[defaults]
deadline = 1
zzz = 1
[[tools]]
match = "x"
match_ = "x"
inline_s = 1
"""
    assert check(text) == [
        'p.toml:2: owner: unknown key; did you mean "owners"?',
        'p.toml:3: defualts: unknown key; did you mean "defaults"?',
        'p.toml:5: defaults.deadline: unknown key; did you mean "deadline_s"?',
        "p.toml:6: defaults.zzz: unknown key",
        'p.toml:9: tools.0.match_: unknown key; did you mean "match"?',
        'p.toml:10: tools.0.inline_s: unknown key; did you mean "inline_ms"?',
    ]


@requirement("OWN-CONFIG")
def test_a_second_rule_for_the_same_tools_would_never_count_and_is_refused(check):
    entry = '[[tools]]\nmatch = "x*"\n'
    assert check(f"version = 1\n{entry}{entry}{entry}") == [
        "p.toml:5: tools.1.match: is used twice: see line 3",
        "p.toml:7: tools.2.match: is used twice: see line 3",
    ]


OTHER_SETTINGS = {
    "poll_burst": "4",
    "on_fast_poll": '"reject"',
    "poll_abuse": "1",
    "status_per_min": "1",
    "create_per_min": "1",
    "result_per_min": "1",
    "result_bytes_per_min": "1",
    "reconcile_per_min": "1",
    "failed_lookups_per_min": "1",
    "max_inline_result_bytes": "2",
    "fallback": '"refuse"',
    "redact": '["/a"]',
    "arguments_schema": '"none"',
    "authorize": '[{ argument = "/a", in_claim = "b" }]',
    "order": '[["/a", "/b"]]',
    "max_range_days": "366",
    "sensitive_fields": '["password"]',
    "job": '{ preset = "generic" }',
    "poll_interval_ms": '"adaptive"',
}


@requirement("OWN-CONFIG")
@pytest.mark.parametrize("key", OTHER_SETTINGS)
def test_a_setting_without_effect_is_refused_at_another_value_wherever_it_stands(check, key):
    setting = f"{key} = {OTHER_SETTINGS[key]}\n"
    assert check(f'version = 1\n[defaults]\n{setting}[[tools]]\nmatch = "x"\n{setting}') == [
        f"p.toml:3: defaults.{key}: {UNBUILT}",
        f"p.toml:6: tools.0.{key}: {UNBUILT}",
    ]


def test_all_settings_without_effect_are_tried():
    assert OTHER_SETTINGS.keys() == NOT_BUILT - {"pins", "rollout"} | {"poll_interval_ms"}


@pytest.mark.parametrize("key", ["pins", "rollout"])
def test_a_table_without_effect_is_refused(check, key):
    assert check(f"version = 1\n[{key}]\n") == [f"p.toml:2: {key}: {UNBUILT}"]


def test_a_setting_without_effect_is_accepted_at_its_default(check):
    settings = """\
poll_burst = 3
on_fast_poll = "delay"
poll_abuse = 100
status_per_min = 600
create_per_min = 60
result_per_min = 300
result_bytes_per_min = 268435456
reconcile_per_min = 30
failed_lookups_per_min = 30
max_inline_result_bytes = 262144
fallback = "sync"
on_switch = "refuse"
redact = []
arguments_schema = "upstream"
authorize = []
order = []
sensitive_fields = []
poll_interval_ms = 2000
on_lost = "unknown"
"""
    policy = check(f'version = 1\n[defaults]\n{settings}[[tools]]\nmatch = "x"\n{settings}')
    assert policy.defaults == policy.settings("x")[0] == Settings()


def test_a_bound_of_the_whole_upstream_stands_in_the_defaults_only(check):
    assert check("version = 1\n[defaults]\nmax_concurrent_upstream = 7\n").defaults.max_concurrent_upstream == 7
    assert check('version = 1\n[[tools]]\nmatch = "x"\nmax_concurrent_upstream = 50\n') == [
        "p.toml:4: tools.0.max_concurrent_upstream: bounds the upstream as a whole: set it in [defaults]"
    ]


def test_a_valid_policy_is_named_by_its_path_as_it_was_given(check):
    assert check("version = 1\n").source == "p.toml"


@requirement("T25-SEC-2", "OWN-CONFIG")
def test_scopes_are_words_that_fit_into_a_token_and_a_header(check):
    policy = check('version = 1\n[defaults]\ncreate_scopes = ["reports:run", "https://gw.example/x"]\n')
    assert policy.scopes == ["https://gw.example/x", "reports:run"]
    problems = check('version = 1\n[defaults]\nread_scopes = ["a b", "", "a\\"b", "é"]\n')
    assert [problem.split(": must")[0] for problem in problems] == [
        f"p.toml:3: defaults.read_scopes.{index}" for index in range(4)
    ]


@requirement("OWN-RESOURCE")
def test_the_scopes_of_a_policy_are_those_of_all_its_rules(check):
    policy = check(
        'version = 1\n[defaults]\ncreate_scopes = ["c"]\nread_scopes = ["r"]\n'
        '[[tools]]\nmatch = "x"\ncancel_scopes = ["x", "r"]\n[[tools]]\nmatch = "y"\ncreate_scopes = []\n'
    )
    assert policy.scopes == ["c", "r", "x"]
