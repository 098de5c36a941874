"""The commands: what they print where, and how they end. None of these starts a gateway."""

import shutil
from pathlib import Path

import pytest

from gateway import __version__
from gateway.cli.main import main, parser
from gateway.cli.serve import from_options
from gateway.config.models import Admin, Config, Server, Store, Upstream
from tests.requirements import requirement

EXAMPLE = """\
reports: http://127.0.0.1:9000/mcp with policies/example.toml
config.example.toml: ok
"""

CHARGE = """\
reports/charge: policies/example.toml: [[tools]] match = "charge"
  task-augmented call of 2025-11-25: task
  plain call of 2025-11-25: refuse (task_required)
  call that declares the extension: wait inline_ms, then a task
  call of a client without Tasks: refuse (task_required)
  task_support = "required"
  effect = "consequential"
  ttl_min_s = 60
  ttl_default_s = 3600
  ttl_max_s = 86400
  keep_result_s = 600
  deadline_s = 300
  inline_ms = 1000
  input_phase = "during"
  input_timeout_s = 600
  assume_elicitation = false
  sync_timeout_s = 50
  poll_interval_ms = 2000
  on_lost = "unknown"
  on_switch = "refuse"
  resend_on_session_404 = true
  max_concurrent_per_principal = 3
  max_concurrent_per_tenant = 100
  max_concurrent_upstream = 50
  max_arguments_bytes = 262144
  max_result_bytes = 67108864
  operation.idempotency_key = "argument:/key"
  operation.derived_window_s = 300
  operation.missing_key = "refuse"
  operation.intended_effect = "charge {arguments.amount}"
  operation.approval.message = "Charge {arguments.amount}?"
  operation.approval.preview_tool = "preview_charge"
  operation.approval.timeout_s = 240
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example configuration with its policy, as an operator finds it."""
    shutil.copy(repository / "config.example.toml", tmp_path)
    shutil.copytree(repository / "policies", tmp_path / "policies")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    status = main(arguments)
    return status, *capsys.readouterr()


def stopped(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """The same, where reading the command line ends it."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code, *capsys.readouterr()


@requirement("OWN-CONFIG")
def test_check_accepts_the_example_and_says_what_applies_where(capsys):
    assert run(capsys, "check", "--config", "config.example.toml") == (0, EXAMPLE, "")


@requirement("OWN-CONFIG")
def test_check_warns_of_a_grace_in_which_other_gateways_cannot_come_back(capsys, folder):
    config = folder / "config.example.toml"
    text = config.read_text()
    for grace, lines in ((0, 1), (3.9, 1), (4, 0)):  # store.timeout_s is 2
        config.write_text(text.replace("takeover_grace_s = 30 ", f"takeover_grace_s = {grace} "))
        status, out, err = run(capsys, "check", "--config", "config.example.toml")
        assert (status, out, len(err.splitlines())) == (0, EXAMPLE, lines)
        assert err.startswith("config.example.toml: warning: runner.takeover_grace_s: ") or not lines


def test_check_names_files_as_they_are_reached_from_here(capsys, folder, monkeypatch):
    monkeypatch.chdir("/")
    config = folder / "config.example.toml"
    status, out, err = run(capsys, "check", "--config", str(config))
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"reports: http://127.0.0.1:9000/mcp with {folder}/policies/example.toml",
        f"{config}: ok",
    ]


def test_check_says_when_the_built_in_policy_applies(capsys, folder):
    (folder / "c.toml").write_text('[[upstreams]]\nname = "a"\nurl = "http://h"\n')
    assert run(capsys, "check", "--config", "c.toml") == (0, "a: http://h with built-in policy\nc.toml: ok\n", "")


@requirement("OWN-CONFIG")
def test_check_prints_every_problem_on_standard_error_and_ends_with_2(capsys, folder):
    (folder / "config.example.toml").write_text(
        '[server]\nlisten = "SECRET-123"\nlisen = 1\n[[upstreams]]\nname = "a"\npolicy = "policies/example.toml"\n'
    )
    (folder / "policies" / "example.toml").write_text("version = 2\n")
    status, out, err = run(capsys, "check", "--config", "config.example.toml")
    assert (status, out) == (2, "")
    assert err.splitlines() == [
        "config.example.toml:2: server.listen: must be HOST:PORT",
        'config.example.toml:3: server.lisen: unknown key; did you mean "listen"?',
        "config.example.toml:4: upstreams.0.url: is missing",
        "policies/example.toml:1: version: must be 1",
    ]


@pytest.mark.parametrize(
    "command", [["check"], ["serve"], ["explain", "--upstream", "reports", "--tool", "charge"]], ids=lambda c: c[0]
)
def test_a_configuration_that_is_not_there_ends_every_command_with_2(capsys, command):
    assert run(capsys, *command, "--config", "absent.toml") == (
        2,
        "",
        "absent.toml:1: file: cannot be read: No such file or directory\n",
    )


def explain(upstream: str, tool: str) -> list[str]:
    return ["explain", "--config", "config.example.toml", "--upstream", upstream, "--tool", tool]


def test_explain_prints_the_rule_what_each_caller_gets_and_the_limits(capsys):
    assert run(capsys, *explain("reports", "charge")) == (0, CHARGE, "")


@pytest.mark.parametrize(
    ("tool", "lines"),
    [
        (
            "build_report",
            [
                'reports/build_report: policies/example.toml: [[tools]] match = "build_*"',
                "  task-augmented call of 2025-11-25: task",
                "  plain call of 2025-11-25: bounded synchronous call",
                "  call that declares the extension: task",
                "  call of a client without Tasks: bounded synchronous call",
                '  task_support = "optional"',
            ],
        ),
        (
            "other",
            [
                "reports/other: policies/example.toml: [defaults]",
                "  task-augmented call of 2025-11-25: refuse (task_forbidden)",
                "  plain call of 2025-11-25: plain call",
                "  call that declares the extension: plain call",
                "  call of a client without Tasks: plain call",
                '  task_support = "forbidden"',
            ],
        ),
    ],
)
def test_explain_follows_the_policy(capsys, tool, lines):
    status, out, _ = run(capsys, *explain("reports", tool))
    assert status == 0
    assert out.splitlines()[:6] == lines


def test_explain_shows_the_domain_side_of_a_tool(capsys, folder):
    with (folder / "policies" / "example.toml").open("a") as file:
        file.write(
            """
[[tools]]
match = "refund"
[tools.operation]
idempotency_key = "argument:/id"
intended_effect = "charge {arguments.id}, caf\u00e9"
reconcile = { tool = "build_x", arguments = { id = "{arguments.id}" }, outcome = "result:/s", succeeded = ["yes"] }
"""
        )
    status, out, _ = run(capsys, *explain("reports", "refund"))
    assert status == 0
    assert [line for line in out.splitlines() if line.startswith("  operation")] == [
        '  operation.idempotency_key = "argument:/id"',
        "  operation.derived_window_s = 300",
        '  operation.missing_key = "refuse"',
        '  operation.intended_effect = "charge {arguments.id}, caf\u00e9"',
        '  operation.reconcile.tool = "build_x"',
        '  operation.reconcile.arguments.id = "{arguments.id}"',
        '  operation.reconcile.outcome = "result:/s"',
        '  operation.reconcile.succeeded = ["yes"]',
        "  operation.reconcile.failed = []",
        "  operation.reconcile.budget_s = 86400",
    ]


def test_explain_names_the_upstreams_that_there_are(capsys, folder):
    with (folder / "config.example.toml").open("a") as file:
        file.write('[[upstreams]]\nname = "second"\nurl = "http://h"\n')
    assert run(capsys, *explain("report", "charge")) == (
        2,
        "",
        "no upstream is named report; there are: reports, second\n",
    )
    assert run(capsys, *explain("second", "x"))[1].startswith("second/x: built-in policy: [defaults]\n")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--listen", "127.0.0.1:1"], "--listen"),
        (["--admin", "127.0.0.1:1"], "--admin"),
        (["--data", "d"], "--data"),
        (["--env", "HOME"], "--env"),
        (["--policy", "policies/example.toml"], "--policy"),
        (["--data", "", "--listen", "x", "--policy", "p", "--admin", "y"], "--policy, --listen, --admin, --data"),
    ],
)
def test_serve_takes_from_a_configuration_what_would_stand_in_it(capsys, options, named):
    assert run(capsys, "serve", "--config", "config.example.toml", *options) == (
        2,
        "",
        f"{named}: not with --config, where these stand in the file\n",
    )


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "8080"], "--listen: must be HOST:PORT"),
        (["--listen", ""], "--listen: must be HOST:PORT"),
        (["--admin", "localhost"], "--admin: must be HOST:PORT"),
        (["--admin", ""], "--admin: must be HOST:PORT"),
        (
            ["--listen", "0.0.0.0:8080"],
            '--listen: must be a loopback address, such as 127.0.0.1:8080, while auth.mode is "none"',
        ),
        (
            ["--admin", "[::]:8081"],
            "--admin: must be a loopback address, such as 127.0.0.1:8081, while there is no admin.token",
        ),
        (["--data", ""], "--data: must be embedded:DIRECTORY, redis://, rediss://, unix://, or a reference to one"),
    ],
)
def test_serve_refuses_an_option_by_its_name(capsys, options, message):
    assert run(capsys, "serve", "--upstream", "http://127.0.0.1:9/mcp", *options) == (2, "", f"{message}\n")


@pytest.mark.parametrize("url", ["", "127.0.0.1:9000", "ftp://h", "http://"])
def test_serve_refuses_an_upstream_that_is_no_url(capsys, url):
    assert run(capsys, "serve", "--upstream", url) == (
        2,
        "",
        "--upstream: must begin with http://HOST or https://HOST\n",
    )


@requirement("OWN-CONFIG")
def test_serve_reports_all_options_and_the_policy_at_once(capsys, folder):
    (folder / "p.toml").write_text("version = 1\n\n[defaults]\ndeadline = 5\n")
    options = ["--upstream", "http://u:SECRET-123@h", "--listen", "x", "--admin", "0.0.0.0:1", "--policy", "p.toml"]
    status, out, err = run(capsys, "serve", *options)
    assert (status, out) == (2, "")
    assert err.splitlines() == [
        "--listen: must be HOST:PORT",
        "--upstream: holds a user or a password: give them in headers, as env:NAME or file:PATH",
        "--admin: must be a loopback address, such as 127.0.0.1:8081, while there is no admin.token",
        'p.toml:4: defaults.deadline: unknown key; did you mean "deadline_s"?',
    ]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("absent.toml", "absent.toml:1: file: cannot be read: No such file or directory"),
        ("policies", "policies:1: file: cannot be read: Is a directory"),
    ],
)
def test_serve_refuses_a_policy_that_cannot_be_read(capsys, name, problem):
    assert run(capsys, "serve", "--upstream", "http://h", "--policy", name) == (2, "", f"{problem}\n")


def test_the_options_of_serve_make_a_configuration_with_one_upstream(capsys):
    options = ["--upstream", "http://h/mcp", "--listen", "127.0.0.1:1", "--admin", "[::1]:2", "--data", "/d"]
    loaded = from_options(parser().parse_args(["serve", *options, "--policy", "policies/example.toml"]))
    assert loaded.config == Config(
        server=Server(listen="127.0.0.1:1"),
        admin=Admin(listen="[::1]:2"),
        store=Store(url="embedded:/d"),
        upstreams=(Upstream(name="upstream", transport="auto", url="http://h/mcp"),),
    )
    assert [(site.upstream, site.policy.source) for site in loaded.sites] == [
        (loaded.config.upstreams[0], "policies/example.toml")
    ]
    assert capsys.readouterr() == ("", "")


def test_serve_says_which_policy_it_uses_when_it_is_given_none(capsys):
    loaded = from_options(parser().parse_args(["serve", "--upstream", "http://h/mcp"]))
    assert loaded.config == Config(upstreams=(Upstream(name="upstream", transport="auto", url="http://h/mcp"),))
    assert loaded.sites[0].policy.settings("any")[0].task_support == "optional"
    assert capsys.readouterr() == ("", "built-in policy: every tool may be a task (task_support = optional)\n")


def test_the_version_is_the_one_of_the_package(capsys):
    assert stopped(capsys, "--version") == (0, f"mcp-task-gateway {__version__}\n", "")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            [],
            [
                "serve",
                "check",
                "explain",
                "token",
                "tasks",
                "ledger",
                "switch",
                "erase",
                "drain",
                "--version",
                "run the gateway",
            ],
        ),
        (["serve"], ["--config FILE", "--upstream URL", "--policy FILE", "--listen HOST:PORT", "--admin HOST:PORT"]),
        (
            ["serve"],
            ["--data DIR", "(default 127.0.0.1:8080)", "(default 127.0.0.1:8081)", "example: mcp-task-gateway"],
        ),
        (["check"], ["--config FILE", "example: mcp-task-gateway check"]),
        (["explain"], ["--config FILE", "--upstream NAME", "--tool NAME", "example: mcp-task-gateway explain"]),
        (["token"], ["--subject S", "--tenant T", "--scopes A,B", "--issuer I", "--audience URL", "--ttl-s N"]),
        (["tasks"], ["ls", "show", "cancel", "example: mcp-task-gateway tasks ls"]),
        (["tasks", "ls"], ["--state", "--upstream NAME", "--older-than AGE", "--limit N", "--cursor C", "--json"]),
        (["tasks", "cancel"], ["ID", "--by WHO", "--admin URL", "(http://127.0.0.1:8081)", "--token REFERENCE"]),
        (["ledger"], ["ls", "show", "resolve", "example: mcp-task-gateway ledger ls"]),
        (["ledger", "resolve"], ["ID", "--outcome {succeeded,failed}", "--reason TEXT", "--by WHO"]),
        (["switch"], ["on", "off", "status", "example: mcp-task-gateway switch on --all"]),
        (
            ["switch", "on"],
            ["--all", "--upstream NAME", "--tool UPSTREAM/TOOL", "--tenant ISSUER TENANT", "--reason TEXT"],
        ),
        (["erase"], ["--subject S", "--issuer I", "--tenant T", "example: mcp-task-gateway erase"]),
        (["drain"], ["--off", "--by WHO", "example: mcp-task-gateway drain"]),
        (["token"], ["--key FILE", "(dev-key.pem)", "(3600)", "example: mcp-task-gateway token"]),
    ],
)
def test_help_names_every_option_and_gives_an_example(capsys, monkeypatch, command, words):
    monkeypatch.setenv("COLUMNS", "200")
    status, out, err = stopped(capsys, *command, "--help")
    assert (status, err) == (0, "")
    assert [word for word in words if word not in out] == []
    assert out.startswith(" ".join(["usage: mcp-task-gateway", *command]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["check"], "the following arguments are required: --config"),
        (["explain", "--config", "c"], "the following arguments are required: --upstream, --tool"),
        (["token"], "the following arguments are required: --subject, --tenant"),
        (["serve"], "one of the arguments --config --upstream COMMAND is required"),
        (["serve", "--config", "c", "--upstream", "u"], "not allowed with argument --config"),
        (["serve", "--config", "c", "--unheard-of"], "unrecognized arguments: --unheard-of"),
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_2(capsys, arguments, message):
    status, out, err = stopped(capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_the_examples_in_the_help_are_command_lines_that_are_understood():
    (commands,) = (action.choices for action in parser()._actions if action.choices)
    for name, command in commands.items():
        for example in command.epilog.removeprefix("example: ").split("; or: "):
            words = example.removeprefix("mcp-task-gateway ").split()
            assert words[0] == name
            assert parser().parse_args(words).run.__module__ == f"gateway.cli.{name}"
