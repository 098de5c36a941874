"""`serve -- COMMAND`: the options that stand for a stdio upstream. None of these starts a gateway."""

import pytest

from gateway.cli.main import main, parser
from gateway.cli.serve import from_options
from gateway.config.models import Config, Upstream
from tests.requirements import requirement


def options(*words: str):
    return from_options(parser().parse_args(["serve", *words]))


@pytest.fixture(autouse=True)
def _variables(monkeypatch):
    monkeypatch.setenv("API_TOKEN", "SECRET-123")
    monkeypatch.delenv("ABSENT", raising=False)


def test_a_command_makes_a_configuration_with_one_upstream(capsys):
    loaded = options("--env", "API_TOKEN", "--env", "HOME", "--", "sh", "-c", "--", "exit")
    variables = {"API_TOKEN": "env:API_TOKEN", "HOME": "env:HOME"}
    command = ("sh", "-c", "--", "exit")
    assert loaded.config == Config(
        upstreams=(Upstream(name="upstream", transport="stdio", command=command, env=variables),)
    )
    assert "built-in policy" in capsys.readouterr().err


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["--", "no-such-program"], ["COMMAND: names no program on PATH"]),
        (["--", ""], ["COMMAND: must begin with the name of a program"]),
        (["--env", "ABSENT", "--", "sh"], ["--env: environment variable ABSENT is not set or empty"]),
        (["--upstream", "http://h", "--env", "HOME"], ['--env: has no effect with transport = "auto"']),
        (
            ["--listen", "x", "--env", "ABSENT", "--", "./no"],
            [
                "--listen: must be HOST:PORT",
                "COMMAND: is no file that can be run",
                "--env: environment variable ABSENT is not set or empty",
            ],
        ),
    ],
)
def test_every_problem_is_told_by_the_name_of_its_option(capsys, words, lines):
    assert main(["serve", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("", lines)


@pytest.mark.parametrize("words", [["--upstream", "http://h"], ["--config", "c.toml"]])
def test_a_command_excludes_the_other_ways(capsys, words):
    with pytest.raises(SystemExit) as caught:
        main(["serve", *words, "--", "sh"])
    assert caught.value.code == 2
    assert "COMMAND: not allowed with argument" in capsys.readouterr().err


def test_check_shows_the_program_and_none_of_its_arguments(capsys, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('[[upstreams]]\nname = "a"\ntransport = "stdio"\ncommand = ["sh", "SECRET-123"]\n')
    assert main(["check", "--config", str(config)]) == 0
    assert capsys.readouterr().out == f"a: the program sh with built-in policy\n{config}: ok\n"
