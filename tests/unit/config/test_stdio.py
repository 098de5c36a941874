"""Upstreams that are run by a command: what they need, what has no effect for them, and what `check` looks for."""

import sys
from pathlib import Path

import pytest

from gateway.config.findings import examine
from gateway.config.load import resolve
from gateway.config.models import Upstream
from gateway.config.programs import missing
from tests.requirements import requirement

STDIO = {"name": "a", "transport": "stdio", "command": ["true"]}
HTTP = {"name": "a", "url": "http://h"}
NOT_ON_PATH = "names no program on PATH"


def messages(**values):
    return [(".".join(map(str, found.keys[0])), found.message) for found in examine(Upstream, values)]


def entry(*lines: str) -> str:
    return "\n".join(['[[upstreams]]\nname = "a"\ntransport = "stdio"', *lines, ""])


def test_a_command_makes_an_upstream():
    made = Upstream(**STDIO, cwd="x", env={"A_1": "b"}, max_sessions=1, session_idle_s=0.1)
    assert (made.command, made.url, made.max_sessions, made.session_idle_s) == (("true",), None, 1, 0.1)
    assert (made.cwd, made.env) == ("x", {"A_1": "b"})


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(("transport", "key"), [("stdio", "command"), ("streamable-http", "url"), ("sse", "url")])
def test_each_transport_needs_one_key(transport, key):
    assert messages(name="a", transport=transport) == [(key, "is missing")]
    if key == "command":
        assert messages(name="a", transport=transport, command=[]) == [(key, "is missing")]


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(
    ("key", "value"),
    [("url", "http://h"), ("url", ""), ("headers", {"X-Team": "blue"}), ("connect_timeout_s", 4)],
)
def test_what_is_about_http_has_no_effect_for_a_command(key, value):
    assert messages(**STDIO, **{key: value}) == [(key, 'has no effect with transport = "stdio"')]


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(
    ("key", "value"),
    [("command", ["true"]), ("cwd", "x"), ("env", {"A": "b"})],
)
def test_what_is_about_a_command_has_no_effect_for_http(key, value):
    assert messages(**HTTP, **{key: value}) == [(key, 'has no effect with transport = "streamable-http"')]


def test_what_stands_at_its_default_is_accepted_with_every_transport():
    assert messages(**STDIO, headers={}, connect_timeout_s=5) == []
    assert messages(**HTTP, command=[], env={}) == []


@pytest.mark.parametrize("entry_", [STDIO, HTTP])
def test_sessions_are_bounded_with_every_transport(entry_):
    assert messages(**entry_, max_sessions=1, session_idle_s=1.5) == []


@requirement("OWN-CONFIG")
def test_every_problem_of_an_entry_is_found_at_once():
    values = {"name": "A", "transport": "stdio", "url": "http://h", "env": {"1": "x", "A": 5}, "max_sessions": 0}
    assert [key for key, _ in messages(**values)] == ["name", "url", "command", "env.1", "env.A", "max_sessions"]


def test_a_transport_that_is_none_says_nothing_of_the_other_keys(load):
    expected = "config.toml:3: upstreams.0.transport: must be 'streamable-http', 'sse', 'stdio' or 'auto'"
    assert load('[[upstreams]]\nname = "a"\ntransport = "pigeon"\ncommand = ["sh"]\n') == [expected]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([""], "must begin with the name of a program"),
        (["a", "b\0"], "must hold no NUL"),
        ("true", "must be an array"),
    ],
)
def test_a_command_is_a_program_and_its_arguments(command, message):
    assert messages(name="a", transport="stdio", command=command) == [("command", message)]


@requirement("OWN-QUIET")
@pytest.mark.parametrize("name", ["API_KEY", "GITHUB_TOKEN", "client_secret", "PGPASSWORD", "AWS_CREDENTIALS"])
def test_a_variable_that_looks_like_a_secret_is_given_by_reference(name):
    expected = [(f"env.{name}", "looks like a secret: give it as env:NAME or file:PATH")]
    assert messages(**STDIO, env={name: "SECRET-123"}) == expected
    assert messages(**STDIO, env={name: "file:x"}) == []


@requirement("OWN-CONFIG")
def test_every_wrong_variable_is_found_at_once():
    assert messages(**STDIO, env={"A B": "x", "": "x", "N": 5, "Z": "a\0"}) == [
        ("env.A B", "is no name of a variable"),
        ("env.", "is no name of a variable"),
        ("env.N", "must be a valid string"),
        ("env.Z", "must hold no NUL"),
    ]


@requirement("OWN-CONFIG")
class TestCheck:
    def test_finds_a_program_on_the_path(self, load):
        (site,) = load(entry('command = ["sh", "-c", "exit"]', 'env = { LEVEL = "debug" }')).sites
        assert site.upstream.command == ("sh", "-c", "exit")

    @pytest.mark.parametrize("command", ["no-such-program", "./server", "/no/such/program"])
    def test_says_where_a_program_is_not_found(self, load, command):
        expected = NOT_ON_PATH if "/" not in command else "is no file that can be run"
        assert load(entry(f'command = ["{command}", "SECRET-123"]')) == [
            f"config.toml:4: upstreams.0.command: {expected}"
        ]

    def test_looks_in_the_folder_where_it_will_run(self, load, folder):
        (folder / "bin").mkdir()
        (folder / "bin" / "server").touch(mode=0o755)
        assert load(entry('command = ["./server"]', 'cwd = "bin"')).config.upstreams[0].cwd == "bin"
        assert load(entry('command = ["./server"]')) == [
            "config.toml:4: upstreams.0.command: is no file that can be run"
        ]
        assert load(entry('command = ["./server"]', 'cwd = "none"')) == [
            "config.toml:5: upstreams.0.cwd: is no directory"
        ]

    def test_looks_on_the_path_that_the_process_will_have(self, load, folder, monkeypatch):
        (folder / "bin").mkdir()
        (folder / "bin" / "server").touch(mode=0o755)
        monkeypatch.setenv("SERVERS", str(folder / "bin"))
        for path in (str(folder / "bin"), "env:SERVERS"):
            assert load(entry('command = ["server"]', f'env = {{ PATH = "{path}" }}')).sites
        assert load(entry('command = ["sh"]', f'env = {{ PATH = "{folder}" }}')) == [
            f"config.toml:4: upstreams.0.command: {NOT_ON_PATH}"
        ]

    def test_resolves_the_variables(self, load):
        assert load(entry('command = ["sh"]', 'env = { API_KEY = "env:ABSENT", PATH = "file:absent" }')) == [
            "config.toml:5: upstreams.0.env.API_KEY: environment variable ABSENT is not set or empty",
            "config.toml:5: upstreams.0.env.PATH: cannot be read: No such file or directory",
        ]

    def test_a_name_that_cannot_be_looked_for_is_a_problem_and_not_a_crash(self, load):
        assert load(entry('command = ["/a\\u0000b"]'))[0].startswith("config.toml:4: upstreams.0.command: ")


def test_a_program_that_is_there_is_not_missing():
    assert missing(sys.executable, Path(), {}) is None
    assert missing("sh", Path(), {}) is None
    assert missing("sh", Path(), {"PATH": "/nowhere"}) == NOT_ON_PATH


def test_a_value_without_a_reference_is_the_value(folder):
    assert resolve("plain", folder) == "plain"
