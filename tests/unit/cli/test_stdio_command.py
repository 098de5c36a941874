"""`stdio`: what its options stand for. None of these starts a gateway."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.main import main, parser
from gateway.cli.stdio import _from_file, _from_options
from gateway.config.models import Config, Store, Upstream
from tests.requirements import requirement

TWO = """
[admin]
listen = "127.0.0.1:8081"
[[upstreams]]
name = "a"
url = "http://h/a"
[[upstreams]]
name = "b"
url = "http://h/b"
"""
JWT = """
[auth]
mode = "jwt"
[[auth.issuers]]
issuer = "https://idp.example.com/"
jwks_url = "https://idp.example.com/jwks.json"
[[upstreams]]
name = "a"
url = "http://h/a"
"""


def parsed(*words: str):
    return parser().parse_args(["stdio", *words])


def options(*words: str):
    return _from_options(parsed(*words))


def data(*words: str) -> str:
    return options(*words).config.store.url.removeprefix("embedded:")


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    monkeypatch.setenv("API_TOKEN", "SECRET-123")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(TWO)
    return path


def test_a_command_makes_a_configuration_with_one_upstream():
    loaded = options("--data", "d", "--name", "mine", "--env", "API_TOKEN", "--", "sh", "-c", "exit")
    upstream = Upstream(
        name="mine", transport="stdio", command=("sh", "-c", "exit"), env={"API_TOKEN": "env:API_TOKEN"}
    )
    assert loaded.config == Config(store=Store(url="embedded:d"), upstreams=(upstream,))
    assert [site.upstream for site in loaded.sites] == [upstream]


def test_each_server_has_a_directory_of_its_own(tmp_path, monkeypatch):
    servers = [
        ("--", "sh"),
        ("--", "sh", "-c"),
        ("--name", "mine", "--", "sh"),
        ("--env", "API_TOKEN", "--", "sh"),
        ("--upstream", "http://h/a"),
        ("--upstream", "http://h/b"),
    ]
    found = [data(*words) for words in servers]
    assert len(set(found)) == len(servers)
    assert found == [data(*words) for words in servers]
    assert all(Path(one).parent == tmp_path / "state" / "mcp-task-gateway" for one in found)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    there = [data(*words) for words in servers]
    # Where a command runs may decide what it does; a URL leads to the same server from everywhere.
    assert [one == other for one, other in zip(found, there, strict=True)] == [False] * 4 + [True] * 2


@pytest.mark.parametrize("state", ["", "relative"])
def test_without_a_state_directory_it_is_below_the_home_directory(monkeypatch, state):
    monkeypatch.setenv("XDG_STATE_HOME", state)
    monkeypatch.setenv("HOME", "/home/ada")
    assert data("--", "sh").startswith("/home/ada/.local/state/mcp-task-gateway/upstream-")


def test_without_a_home_directory_the_data_directory_must_be_given(monkeypatch, capsys):
    def nowhere():
        raise RuntimeError

    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setattr(Path, "home", nowhere)
    assert main(["stdio", "--", "sh"]) == 2
    assert capsys.readouterr().err == "--data: is needed, because there is no home directory\n"
    assert data("--data", "d", "--", "sh") == "d"


@pytest.mark.parametrize(("words", "chosen"), [((), "a"), (("--name", "b"), "b")])
def test_of_a_configuration_one_upstream_is_served(config, words, chosen):
    loaded = _from_file(parsed("--config", str(config), "--admin", "127.0.0.1:0", *words))
    assert [site.upstream.name for site in loaded.sites] == [chosen]


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--name", "c"], "--name: the configuration has a, b"),
        (["--admin", "x"], "--admin: must be HOST:PORT"),
        (["--admin", "0.0.0.0:1"], "--admin: must be a loopback address, such as 127.0.0.1:8081"),
        (["--data", "d", "--env", "HOME"], "--data, --env: not with --config, where these stand in the file"),
    ],
)
def test_what_does_not_go_with_a_configuration_is_told(config, capsys, words, told):
    assert main(["stdio", "--config", str(config), *words]) == 2
    assert capsys.readouterr() == ("", told + "\n")


@requirement("OWN-CONFIG")
def test_a_configuration_that_asks_for_tokens_is_refused(config, capsys):
    config.write_text(JWT)
    assert main(["stdio", "--config", str(config)]) == 2
    assert capsys.readouterr().err == '--config: auth.mode must be "none": no token comes over standard input\n'


def test_a_configuration_with_mistakes_is_refused(config, capsys):
    config.write_text("x = 1")
    assert main(["stdio", "--config", str(config)]) == 2
    assert "x: unknown key" in capsys.readouterr().err


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["--name", "X", "--", "sh"], ["--name: must match"]),
        (["--admin", "0.0.0.0:1", "--", "sh"], ["--admin: must be a loopback address"]),
        (["--", "no-such-program"], ["COMMAND: names no program on PATH"]),
    ],
)
def test_every_problem_is_told_by_the_name_of_its_option(capsys, words, lines):
    assert main(["stdio", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line[: len(start)] for line, start in zip(err.splitlines(), lines, strict=True)] == lines


@pytest.mark.parametrize("words", [["--listen", "127.0.0.1:0", "--", "sh"], []])
def test_there_is_no_listener_and_always_a_server(capsys, words):
    with pytest.raises(SystemExit) as caught:
        main(["stdio", *words])
    assert caught.value.code == 2


def test_streams_that_are_closed_are_told(tmp_path):
    command = [sys.executable, "-m", "gateway", "stdio", "--data", str(tmp_path), "--", "sh"]
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" 0<&- 1>&-', "sh", *command],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert closed.returncode == 1
    assert "standard input and output must be open" in closed.stderr
