"""How the operator's commands read their options and print what they were told, without a gateway."""

import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gateway.cli.main import main, parser
from gateway.cli.printing import age, facts, table
from gateway.cli.remote import spaced
from tests.requirements import requirement

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
        (["--admin", "http://[::1"], "must be http://HOST:PORT"),
        (["--admin", "http://127.0.0.1:8081?x="], "must be http://HOST:PORT"),
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


@requirement("OWN-OPERATE")
class TestAsking:
    """What can go wrong between the command and whatever answers: a line on standard error, never a traceback."""

    @pytest.fixture
    def answers(self, monkeypatch):
        """A server that is no gateway; what it says is set by the test."""
        monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                status, body = self.server.said
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            yield server
            server.shutdown()
            thread.join()

    @pytest.mark.parametrize("value", ["two\nlines-SECRET", "SECRET\u20ac", "a SECRET"])
    def test_a_token_that_no_header_can_hold_is_not_shown(self, tmp_path, capsys, value):
        (tmp_path / "token").write_text(value, encoding="utf-8")
        assert main(["tasks", "ls", "--token", f"file:{tmp_path / 'token'}"]) == 2
        out, err = capsys.readouterr()
        assert (out, err) == ("", "--token: what it refers to is no token: it must be visible ASCII characters\n")

    def test_a_reader_that_has_left_is_no_traceback(self, answers, monkeypatch):
        answers.said = (200, b'{"entries":[],"cursor":null,"now_ms":0}')
        left, written = os.pipe()
        os.close(left)
        with os.fdopen(written, "w") as out:
            monkeypatch.setattr(sys, "stdout", out)
            assert main(["tasks", "ls", "--admin", f"http://127.0.0.1:{answers.server_port}"]) == 1

    @pytest.mark.parametrize("words", [["tasks", "show", "\udcff"], ["ledger", "ls", "--cursor", "\udcff"]])
    def test_an_argument_that_is_no_text_is_refused(self, monkeypatch, capsys, words):
        monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)
        assert main(words) == 2
        assert capsys.readouterr() == ("", "an argument is no UTF-8 text\n")

    @pytest.mark.parametrize(
        ("status", "body", "told"),
        [
            (200, b'{"status":"ok"}', "has no '{}': is it the admin listener?"),
            (404, b'{"error":"no"}', "the gateway said 404: Not Found"),
            (404, b'{"error":{"message":"no\\u001b[2J"}}', "the gateway said 404: no?[2J"),
        ],
    )
    @pytest.mark.parametrize(("words", "wanted"), [("tasks ls", "entries"), ("switch status", "switches")])
    def test_whatever_answers_that_is_no_gateway_is_told(self, answers, capsys, words, wanted, status, body, told):
        answers.said = (status, body)
        assert main([*words.split(), "--admin", f"http://127.0.0.1:{answers.server_port}"]) == 1
        assert told.format(wanted) in capsys.readouterr().err
