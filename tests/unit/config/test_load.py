"""Loading: every problem at once as `file:line: key: message`, and nothing of a secret in any of them."""

from pathlib import Path

import pytest

from gateway.config import models
from gateway.config.load import Problem, built_in_policy, load_config, load_policy, resolve
from gateway.config.models import Config, Upstream
from gateway.policy.decide import BUILT_IN
from gateway.policy.model import Settings
from tests.requirements import requirement

UNBUILT = "has no effect in this release; remove it or set it to its default"
TTL_ORDER = "ttl_min_s, ttl_default_s and ttl_max_s must be in this order"
RETRY = 'on_lost = "retry" would repeat a consequential effect: declare the effect read_only or idempotent'
UPSTREAM = '[[upstreams]]\nname = "a"\nurl = "http://h/mcp"\n'


def test_a_valid_configuration_is_loaded_with_the_policy_of_each_upstream(load):
    second = '[[upstreams]]\nname = "b"\nurl = "https://i"\npolicy = "p.toml"\n'
    loaded = load(
        f"[runner]\nlease_s = 5\n{UPSTREAM}{second}", p='version = 1\n[[tools]]\nmatch = "x"\ninline_ms = 7\n'
    )
    assert loaded.config.runner.lease_s == 5
    assert [site.upstream for site in loaded.sites] == list(loaded.config.upstreams)
    assert [site.policy.source for site in loaded.sites] == ["built-in policy", "p.toml"]
    assert loaded.sites[1].policy.settings("x") == (Settings(inline_ms=7), 'p.toml: [[tools]] match = "x"')


def test_a_policy_is_looked_for_beside_the_configuration_that_names_it(folder):
    (folder / "etc" / "policies").mkdir(parents=True)
    (folder / "etc" / "policies" / "p.toml").write_text("version = 2\n")
    (folder / "etc" / "config.toml").write_text(UPSTREAM + 'policy = "policies/p.toml"\n')
    assert load_config(Path("etc/config.toml")) == [Problem("etc/policies/p.toml", 1, "version", "must be 1")]


def test_without_a_policy_the_built_in_one_applies():
    assert built_in_policy().source == "built-in policy"
    assert built_in_policy().settings("any")[0] == BUILT_IN.defaults


MANY = """\
title = "SECRET-123"
[server]
lisen = "127.0.0.1:80"
listen = "0.0.0.0:80"
max_body_bytes = "SECRET-123"
[server.extra]
a = 1
[admin]
listen = "SECRET-123"
[store]
url = "SECRET-123"
timeout_s = 0
[sevrer]
[auth]
"odd kéy" = "SECRET-123"
[[upstreams]]
name = "a"
url = "http://u:SECRET-123@h"
polcy = "p.toml"
policy = "p.toml"
headers = { Authorization = "SECRET-123", X-Team = "env:ABSENT" }
[[upstreams]]
name = "a"
policy = "absent.toml"
[[upstreams]]
name = "mcp"
url = "SECRET-123"
session_scope = "shared"
policy = { secret = "SECRET-123" }
[upstreams.headers]
"x.y" = "file:absent"
X-Number = 5
"""

POLICY = """\
owners = "SECRET-123"
pins = { tools = ["SECRET-123"] }
[defaults]
ttl_max_s = 100
taks_support = "optional"
deadline_s = "SECRET-123"
redact = ["/a", 5]
[[tools]]
mtach = "x"
on_lost = "retry"
[[tools]]
match = "x"
efect = "SECRET-123"
effect = "SECRET-123"
[[tools]]
match = "x"
max_concurrent_upstream = 5
"""


@requirement("OWN-CONFIG", "OWN-QUIET")
def test_every_problem_of_every_file_is_reported_at_once_in_the_order_of_files_and_lines(load):
    assert load(MANY, p=POLICY) == [
        "absent.toml:1: file: cannot be read: No such file or directory",
        "config.toml:1: title: unknown key",
        'config.toml:3: server.lisen: unknown key; did you mean "listen"?',
        'config.toml:4: server.listen: must be a loopback address, such as 127.0.0.1:8080, while auth.mode is "none"',
        "config.toml:5: server.max_body_bytes: must be a valid integer",
        "config.toml:6: server.extra: unknown key",
        "config.toml:9: admin.listen: must be HOST:PORT",
        "config.toml:11: store.url: must be embedded:DIRECTORY, redis://, rediss://, unix://, or a reference to one",
        "config.toml:12: store.timeout_s: must be greater than 0",
        'config.toml:13: sevrer: unknown key; did you mean "server"?',
        'config.toml:15: auth."odd kéy": unknown key',
        "config.toml:18: upstreams.0.url: holds a user or a password: give them in headers, as env:NAME or file:PATH",
        'config.toml:19: upstreams.0.polcy: unknown key; did you mean "policy"?',
        "config.toml:21: upstreams.0.headers.Authorization: looks like a secret: give it as env:NAME or file:PATH",
        "config.toml:21: upstreams.0.headers.X-Team: environment variable ABSENT is not set or empty",
        "config.toml:22: upstreams.1.url: is missing",
        "config.toml:23: upstreams.1.name: is used twice: see line 17",
        "config.toml:26: upstreams.2.name: must match [a-z][a-z0-9-]{0,39} and be none of artifacts, healthz, mcp",
        "config.toml:27: upstreams.2.url: must begin with http://HOST or https://HOST",
        f"config.toml:28: upstreams.2.session_scope: {UNBUILT}",
        "config.toml:29: upstreams.2.policy: must be a valid string",
        'config.toml:31: upstreams.2.headers."x.y": cannot be read: No such file or directory',
        "config.toml:32: upstreams.2.headers.X-Number: must be a valid string",
        "p.toml:1: owners: must be an array",
        "p.toml:1: version: is missing",
        f"p.toml:2: pins: {UNBUILT}",
        f"p.toml:4: defaults.ttl_max_s: {TTL_ORDER}",
        'p.toml:5: defaults.taks_support: unknown key; did you mean "task_support"?',
        "p.toml:6: defaults.deadline_s: must be a valid integer",
        f"p.toml:7: defaults.redact: {UNBUILT}",
        "p.toml:7: defaults.redact.1: must be a valid string",
        "p.toml:8: tools.0.match: is missing",
        'p.toml:9: tools.0.mtach: unknown key; did you mean "match"?',
        f"p.toml:10: tools.0.on_lost: {RETRY}",
        'p.toml:13: tools.1.efect: unknown key; did you mean "effect"?',
        "p.toml:14: tools.1.effect: must be 'read_only', 'idempotent' or 'consequential'",
        "p.toml:16: tools.2.match: is used twice: see line 12",
        "p.toml:17: tools.2.max_concurrent_upstream: bounds the upstream as a whole: set it in [defaults]",
    ]


@requirement("OWN-QUIET")
@pytest.mark.parametrize(
    "value", ['"SECRET-123"', '["SECRET-123"]', '{ a = "SECRET-123" }', '[{ a = ["SECRET-123"] }]']
)
def test_a_secret_in_whatever_key_is_in_no_problem(load, value):
    sections = [
        (
            f"[[{name}]]" if name == "upstreams" else f"[{name}]",
            Upstream if name == "upstreams" else type(field.default),
        )
        for name, field in Config.model_fields.items()
    ]
    config = [
        line for header, model in sections for line in (header, *(f"{key} = {value}" for key in model.model_fields))
    ]
    settings = "".join(f"{key} = {value}\n" for key in Settings.model_fields)
    policy = f"version = {value}\nowners = {value}\n[defaults]\n{settings}[[tools]]\nmatch = {value}\n{settings}"
    problems = load("\n".join(config).replace(f"policy = {value}", 'policy = "p.toml"'), p=policy)
    assert len(problems) > 90
    assert "SECRET-123" not in "\n".join(problems)


def test_problems_sort_by_file_then_line_as_a_number_and_read_as_compilers_write_them():
    made = [Problem("b", 1, "k", "m"), Problem("a", 10, "k", "m"), Problem("a", 9, "k", "n"), Problem("a", 9, "k", "m")]
    assert [str(problem) for problem in sorted(made)] == ["a:9: k: m", "a:9: k: n", "a:10: k: m", "b:1: k: m"]


def test_a_policy_of_two_upstreams_has_its_problems_once(load):
    second = '[[upstreams]]\nname = "b"\nurl = "http://h"\npolicy = "p.toml"\n'
    assert load(f'{UPSTREAM}policy = "p.toml"\n{second}', p="version = 2\n") == ["p.toml:1: version: must be 1"]


def test_upstreams_written_in_one_line_are_told_apart(load):
    entry = '{ name = "a", url = "http://h" }'
    assert load(f"upstreams = [{entry}, {entry}]\n") == ["config.toml:1: upstreams.1.name: is used twice: see line 1"]


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (b"[server]\nlisten = \n", "config.toml:2: syntax: Invalid value"),
        (b"a = 1\n\n[a]\n", "config.toml:3: syntax: Cannot overwrite a value"),
        (b'a = 1\nb = """\nSECRET-123\n', "config.toml:4: syntax: Unterminated string"),
        (b"a = 1\n# \xff SECRET-123\n", "config.toml:2: file: is not UTF-8"),
        (b"a = " + b"[" * 5000, "config.toml:1: file: cannot be read: "),
    ],
)
def test_a_file_that_is_no_toml_is_refused_with_its_line(load, source, problem):
    (found,) = load(source)
    assert found.startswith(problem)
    assert "SECRET-123" not in found


@pytest.mark.parametrize(
    ("name", "reason"),
    [("absent.toml", "No such file or directory"), (".", "Is a directory"), ("a\0b", "embedded null byte")],
)
def test_a_file_that_cannot_be_read_is_a_problem_and_not_a_crash(name, reason):
    expected = [Problem(name, 1, "file", f"cannot be read: {reason}")]
    assert load_config(Path(name)) == expected
    assert load_policy(Path(name)) == expected


def test_an_empty_configuration_lacks_its_upstreams(load):
    assert load("") == ["config.toml:1: upstreams: must have at least one entry: [[upstreams]]"]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_section_of_a_wrong_shape_is_one_problem(load, newline):
    source = 'server = "SECRET-123"\nstore = [1]\n[[runner]]\nlease_s = 1\n[upstreams]\nname = "a"\nheaders = 5\n'
    assert load(source.replace("\n", newline)) == [
        "config.toml:1: server: must be a table",
        "config.toml:2: store: must be a table",
        "config.toml:3: runner: must be a table",
        "config.toml:5: upstreams: must be an array",
    ]


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("absent/audit.jsonl", "lies in no directory that is there"),
        (".", "is a directory: name a file in it"),
        ("a\\u0000b", "must hold no NUL"),
    ],
)
def test_an_audit_file_that_cannot_be_made_is_refused(load, file, problem):
    assert load(f'{UPSTREAM}[audit]\nfile = "{file}"\n') == [f"config.toml:5: audit.file: {problem}"]


@requirement("OWN-ADMIN")
def test_a_token_of_the_admin_listener_must_lead_somewhere(load):
    assert load(f'{UPSTREAM}[admin]\ntoken = "env:ABSENT"\n') == [
        "config.toml:5: admin.token: environment variable ABSENT is not set or empty"
    ]


@requirement("OWN-ADMIN")
@pytest.mark.parametrize("value", ["two words", "pa\u00dfwort", "SECRET\udcff"])
def test_a_token_of_the_admin_listener_must_fit_into_a_header(load, monkeypatch, value):
    monkeypatch.setenv("ADMIN_TOKEN", value)
    assert load(f'{UPSTREAM}[admin]\ntoken = "env:ADMIN_TOKEN"\n') == [
        "config.toml:5: admin.token: what it refers to must be visible ASCII characters: a header has to hold it"
    ]


OTHER_VALUES = {
    "server.workers": "2",
    "store.shards": "2",
    "secrets.keys": '[{ id = "k", value = "SECRET-123" }]',
    "secrets.encrypt_at_rest": "true",
    "sessions.max_per_principal": "51",
    "upstreams.session_scope": '"shared"',
    "upstreams.allowed_hosts": '["h"]',
}


@requirement("OWN-CONFIG")
@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_key_of_the_configuration_without_effect_is_refused_at_another_value(load, name):
    section, key = name.split(".")
    line, path = (4, f"upstreams.0.{key}") if section == "upstreams" else (5, name)
    header = "" if section == "upstreams" else f"[{section}]\n"
    assert load(f"{UPSTREAM}{header}{key} = {OTHER_VALUES[name]}\n") == [f"config.toml:{line}: {path}: {UNBUILT}"]


def test_all_keys_of_the_configuration_without_effect_are_tried():
    assert OTHER_VALUES.keys() == models.NOT_BUILT


def test_a_key_of_the_configuration_without_effect_is_accepted_at_its_default(load):
    text = """\
server = { workers = 1 }
store = { shards = 1, sent_durability = "local" }
secrets = { keys = [], encrypt_at_rest = false }
sessions = { max_per_principal = 50 }
auth = { mode = "none", issuers = [] }
[[upstreams]]
name = "a"
url = "http://h"
transport = "streamable-http"
session_scope = "principal"
allowed_hosts = []
"""
    assert load(text).config == Config(upstreams=(Upstream(name="a", url="http://h"),))


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "cannot be read: it is empty"),
        (b" \n", "cannot be read: it is empty"),
        (b"\xffSECRET-123", "cannot be read: it is no UTF-8 text"),
    ],
)
def test_a_file_that_holds_no_secret_is_a_problem_of_the_key_that_names_it(load, folder, content, message):
    if content is not None:
        (folder / "secret").write_bytes(content)
    assert load(UPSTREAM + 'headers.Authorization = "file:secret"\n') == [
        f"config.toml:4: upstreams.0.headers.Authorization: {message}"
    ]


@requirement("OWN-CONFIG")
@pytest.mark.parametrize("value", [None, ""])
def test_an_unset_or_empty_variable_is_a_problem_of_the_key_that_names_it(load, monkeypatch, value):
    if value is not None:
        monkeypatch.setenv("ABSENT", value)
    assert load(f'[store]\nurl = "env:ABSENT"\n{UPSTREAM}') == [
        "config.toml:2: store.url: environment variable ABSENT is not set or empty"
    ]


@requirement("OWN-CONFIG", "OWN-QUIET")
def test_a_reference_must_lead_to_the_url_of_a_store(load, folder, monkeypatch):
    expected = ["config.toml:2: store.url: what it refers to is no embedded:DIRECTORY, redis://, rediss:// or unix://"]
    monkeypatch.setenv("STORE_URL", "SECRET-123")
    (folder / "url").write_text("http://SECRET-123")
    assert load(f'[store]\nurl = "env:STORE_URL"\n{UPSTREAM}') == expected
    assert load(f'[store]\nurl = "file:url"\n{UPSTREAM}') == expected


def test_references_that_lead_somewhere_are_accepted_and_stay_references(load, folder, monkeypatch):
    monkeypatch.setenv("STORE_URL", "redis://:SECRET-123@h")
    (folder / "secret").write_text("SECRET-123\n")
    loaded = load(f'[store]\nurl = "env:STORE_URL"\n{UPSTREAM}headers = {{ Authorization = "file:secret" }}\n')
    assert loaded.config.store.url == "env:STORE_URL"
    assert loaded.config.upstreams[0].headers == {"Authorization": "file:secret"}


def test_a_reference_is_resolved_and_anything_else_is_itself(folder, monkeypatch):
    monkeypatch.setenv("NAME", " a:b ")
    assert resolve("env:NAME", folder) == " a:b "
    assert [resolve(value, folder) for value in ("plain", "", "redis://h", "embedded:./data")] == [
        "plain",
        "",
        "redis://h",
        "embedded:./data",
    ]


def test_a_file_is_read_at_each_call_and_relative_to_the_configuration(folder):
    (folder / "run").mkdir()
    secret = folder / "run" / "secret"
    secret.write_text("  old é\n")
    assert resolve("file:run/secret", folder) == "old é"
    secret.write_text("new\n")
    assert resolve("file:secret", folder / "run") == "new"
    assert resolve(f"file:{secret}", Path("/elsewhere")) == "new"


def test_a_reference_that_leads_nowhere_raises_what_its_callers_expect(folder):
    with pytest.raises(LookupError, match=r"^ABSENT$"):
        resolve("env:ABSENT", folder)
    with pytest.raises(FileNotFoundError):
        resolve("file:absent", folder)
    with pytest.raises(OSError, match="it is no UTF-8 text"):
        resolve("file:a\0b", folder)
