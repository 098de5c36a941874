"""Sessions with servers that run as child processes: real ones, in every way in which they behave and misbehave."""

import asyncio
import json
import os
import re
import resource
import signal
from pathlib import Path

import pytest
from msgspec import Raw

from gateway.core.model import Owner
from gateway.upstream import child, session
from gateway.upstream import stdio as pool
from gateway.upstream.port import Call, NotSent, OutcomeUnknown
from gateway.upstream.process import Command
from gateway.wire.intent import LEGACY_VERSIONS
from tests.e2e.processes import alive
from tests.requirements import requirement
from tests.stdio_server import ALICE, BOB, call_of, text_of
from tests.upstream_server import ODD

CAROL = Owner("issuer", "carol", "t", "reports")
ELICITATION = '{"elicitation":{}}'


async def ask(upstream, link, tool, **arguments):
    """The text that a tool answers."""
    return text_of(await upstream.perform(link, call_of(upstream, tool, **arguments)))


async def pid_of(upstream, owner=ALICE, capabilities="{}"):
    return int(await ask(upstream, await upstream.open(owner, capabilities), "pid"))


def start(upstream, link, tool, **arguments):
    """A call under way."""
    return asyncio.ensure_future(upstream.perform(link, call_of(upstream, tool, **arguments)))


class TestHandshake:
    async def test_says_who_we_are_and_what_the_client_can(self, make, stdio):
        upstream = make()
        link = await upstream.open(ALICE, ELICITATION)
        assert (link.owner, link.version, link.capabilities) == (ALICE, "2025-06-18", ELICITATION)
        await stdio.until(lambda: len(stdio.seen) == 3)
        _, first, second = stdio.seen
        assert first["params"]["protocolVersion"] == LEGACY_VERSIONS[0]
        assert first["params"]["capabilities"] == {"elicitation": {}}
        assert second == {"jsonrpc": "2.0", "method": "notifications/initialized", "params": {}}

    async def test_is_shared_by_callers_that_come_together(self, make, stdio):
        upstream = make()
        links = await asyncio.gather(*(upstream.open(ALICE) for _ in range(10)))
        assert len(set(links)) == 1
        assert stdio.methods().count("initialize") == 1

    async def test_goes_on_for_the_others_when_one_of_them_leaves(self, make, stdio):
        upstream = make()
        leaving, staying = (asyncio.ensure_future(upstream.open(ALICE)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await ask(upstream, await staying, "echo", a=1) == '{"a": 1}'
        assert stdio.methods().count("initialize") == 1

    async def test_answers_a_ping_that_comes_first(self, make):
        assert await pid_of(make("asks-first"))

    async def test_skips_a_banner_and_warns_once(self, make, log):
        assert await pid_of(make("banner"))
        (warning,) = log.said("upstream_no_mcp")
        assert (warning["upstream"], warning["bytes"]) == ("reports", len("Welcome to the server"))
        assert "Welcome" not in log.stream.getvalue()

    @pytest.mark.parametrize(
        ("mode", "reason", "again", "message"),
        [
            ("exit", "upstream_down", True, "the upstream's process ended with exit code 7 (during the handshake)"),
            (
                "traceback",
                "upstream_down",
                True,
                "the upstream's process ended with exit code 1 (during the handshake)",
            ),
            ("old", "upstream_bad", False, "the upstream did not complete the handshake"),
        ],
    )
    async def test_that_fails_means_that_nothing_was_sent(self, make, mode, reason, again, message):
        upstream = make(mode)
        with pytest.raises(NotSent) as caught:
            await upstream.open(ALICE)
        assert (caught.value.reason, caught.value.again, str(caught.value)) == (reason, again, message)

    async def test_takes_no_longer_than_it_may(self, make, monkeypatch):
        monkeypatch.setattr(session, "HANDSHAKE_S", 0.2)
        with pytest.raises(NotSent, match="did not complete the handshake within") as caught:
            await make("never-ready").open(ALICE)
        assert caught.value.again

    async def test_shows_what_the_server_printed_before_it_died(self, make, log, stdio):
        with pytest.raises(NotSent):
            await make("traceback").open(ALICE)
        await stdio.until(lambda: any("no database" in one["line"] for one in log.said("upstream_stderr")))


class TestStart:
    @pytest.mark.parametrize(
        ("program", "why"),
        [
            ("/no/such/program", "No such file or directory"),
            ("/etc/passwd", "Permission denied"),
            ("a\0b", "holds a NUL"),
        ],
    )
    async def test_of_what_is_no_program_is_not_tried_again(self, make, tmp_path, program, why):
        upstream = make(command=Command([program], tmp_path, dict))
        with pytest.raises(NotSent, match=why) as caught:
            await upstream.open(ALICE)
        assert not caught.value.again

    async def test_without_a_free_descriptor_may_be_tried_again(self, make):
        upstream = make()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(NotSent, match="Too many open files") as caught:
                await upstream.open(ALICE)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert caught.value.again
        assert await pid_of(upstream)

    async def test_in_a_folder_that_is_not_there_fails(self, make, tmp_path):
        with pytest.raises(NotSent, match="No such file or directory"):
            await make(command=Command(["true"], tmp_path / "none", dict)).open(ALICE)

    async def test_waits_for_variables_that_can_be_read(self, make, stdio, monkeypatch):
        monkeypatch.setattr(pool, "_FIRST_DELAY_S", 0)
        upstream = make(command=stdio.command("", API_TOKEN="file:secret"))
        with pytest.raises(NotSent, match="variables") as caught:
            await upstream.open(ALICE)
        assert caught.value.again
        (stdio.folder / "secret").write_text("SECRET-123\n")
        told = json.loads(await ask(upstream, await upstream.open(ALICE), "env"))
        assert told["API_TOKEN"] == "SECRET-123"

    @requirement("OWN-QUIET")
    async def test_gives_a_server_a_few_variables_and_its_own(self, make, stdio, log, monkeypatch):
        for name in ("SECRET", "PYTHONPATH", "LC_ALL", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "SECRET-123")
        monkeypatch.setenv("TMPDIR", str(stdio.folder))
        monkeypatch.setenv("LANG", "C")
        monkeypatch.setenv("LEVEL", "info")
        upstream = make(command=stdio.command("", LEVEL="debug", OTHER="env:LEVEL"))
        told = json.loads(await ask(upstream, await upstream.open(ALICE), "env"))
        own = {"LEVEL": "debug", "OTHER": "info", "cwd": str(stdio.folder)}
        given = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        told.pop("LC_CTYPE", None)  # the server's own Python sets it where the locale is C
        assert told == {**given, **own}
        assert "SECRET-123" not in log.stream.getvalue()

    async def test_gives_a_server_pipes_and_signals_as_it_expects_them(self, make, tmp_path):
        """No descriptor of the gateway is inherited, and no signal is ignored that a shell would not ignore."""
        looks = ["ls -l /proc/self/fd > fds", "grep SigIgn /proc/self/status > ignored", "env > env"]
        script = "; ".join(looks)
        upstream = make(command=Command(["sh", "-c", script], tmp_path, lambda: {"LANG": "C"}))
        with pytest.raises(NotSent, match="exit code 0"):
            await upstream.open(ALICE)
        listed = [line.split()[-3:] for line in (tmp_path / "fds").read_text().splitlines() if "->" in line]
        assert {one[0] for one in listed if one[2].startswith("pipe:")} == {"0", "2"}
        assert not [one for one in listed if one[2].startswith("socket:")]
        reserved = (1 << 31) | (1 << 32)  # signals 32 and 33 belong to the C library: nobody can reset them
        assert int((tmp_path / "ignored").read_text().split()[1], 16) & ~reserved == 0
        assert "LC_CTYPE" not in (tmp_path / "env").read_text()


class TestCalls:
    @requirement("OWN-BYTES")
    async def test_answers_stay_as_they_were_written(self, make):
        upstream = make()
        response = await upstream.perform(await upstream.open(ALICE), call_of(upstream, "odd"))
        assert (response.ok, response.body) == (True, ODD)

    @requirement("OWN-BYTES")
    async def test_a_line_break_between_values_ends_no_message(self, make, stdio):
        upstream = make()
        written = Raw(b'{"big": 9007199254740993,\n "huge": 1e400,\r\n "text": "a\\nb"}')
        params = {"name": Raw(b'"echo"'), "arguments": written}
        link = await upstream.open(ALICE)
        response = await upstream.perform(link, Call(upstream.next_id(), "tools/call", params, 10_000))
        assert text_of(response) == '{"big": 9007199254740993, "huge": Infinity, "text": "a\\nb"}'
        assert len(stdio.calls()) == 1

    async def test_run_beside_each_other_where_nothing_can_be_asked(self, make, stdio):
        upstream = make()
        link = await upstream.open(ALICE)
        first, second = (start(upstream, link, "gate", name=name) for name in "ab")
        await stdio.until(lambda: len(stdio.calls("gate")) == 2)
        stdio.open("b")
        assert text_of(await second) == "through b"
        assert not first.done()
        stdio.open("a")
        assert text_of(await first) == "through a"

    async def test_have_their_own_progress(self, make, stdio):
        upstream = make()
        link = await upstream.open(ALICE)
        heard = {"a": [], "b": []}
        calls = {name: call_of(upstream, "progress", name=name) for name in heard}
        running = [
            asyncio.ensure_future(upstream.perform(link, calls[name], heard[name].append)) for name in ("a", "b")
        ]
        await stdio.until(lambda: all(len(notes) == 2 for notes in heard.values()))
        stdio.open("a")
        stdio.open("b")
        await asyncio.gather(*running)
        for name, notes in heard.items():
            assert [bytes(note.params["progressToken"]) for note in notes] == [str(calls[name].id).encode()] * 2
            assert [bytes(note.params["progress"]) for note in notes] == [b"1", b"2"]

    async def test_whose_progress_is_not_taken_go_on(self, make, log):
        upstream = make()
        link = await upstream.open(ALICE)

        def on_progress(_):
            raise ZeroDivisionError

        response = await upstream.perform(link, call_of(upstream, "progress"), on_progress)
        assert response.ok
        log.faults = ["ZeroDivisionError"] * 2

    async def test_what_nobody_asked_for_is_ignored(self, make, log):
        upstream = make()
        assert await ask(upstream, await upstream.open(ALICE), "chatter") == "done"
        assert log.said("upstream_no_mcp") == []

    async def test_what_is_printed_between_messages_is_skipped(self, make, log):
        upstream = make()
        assert await ask(upstream, await upstream.open(ALICE), "print") == "done"
        assert len(log.said("upstream_no_mcp")) == 1

    @pytest.mark.parametrize("tool", ["garbage", "deep"])
    async def test_an_answer_that_is_none_ends_its_call_only(self, make, tool):
        upstream = make()
        link = await upstream.open(ALICE)
        with pytest.raises(OutcomeUnknown, match="not MCP") as caught:
            await ask(upstream, link, tool)
        assert caught.value.reason == "upstream_bad"
        assert await ask(upstream, link, "echo") == "{}"

    async def test_an_answer_larger_than_its_call_allows_ends_its_call_only(self, make, stdio):
        upstream = make()
        link = await upstream.open(ALICE)
        other = start(upstream, link, "gate", name="a")
        with pytest.raises(OutcomeUnknown, match="larger than max_result_bytes"):
            await upstream.perform(link, call_of(upstream, "huge", max_bytes=10_000, size=10_001))
        stdio.open("a")
        assert text_of(await other) == "through a"
        assert len(await ask(upstream, link, "huge", size=900_000)) == 900_000

    async def test_a_large_answer_that_is_allowed_arrives(self, make):
        upstream = make()
        link = await upstream.open(ALICE)
        response = await upstream.perform(link, call_of(upstream, "huge", max_bytes=20_000_000, size=10_000_000))
        assert len(text_of(response)) == 10_000_000


class TestCancel:
    @requirement("T25-CAN-3")
    async def test_tells_the_server_once_with_our_own_id(self, make, stdio):
        upstream = make()
        link = await upstream.open(ALICE)
        call = call_of(upstream, "gate", name="a")
        running = asyncio.ensure_future(upstream.perform(link, call))
        await stdio.until(lambda: stdio.calls("gate"))
        await upstream.cancel(link, call)
        await upstream.cancel(link, call)
        stdio.open("a")
        assert text_of(await running) == "through a"
        await upstream.cancel(link, call)
        await ask(upstream, link, "echo")
        assert stdio.cancelled() == [call.id]

    @requirement("T25-CAN-3")
    async def test_that_breaks_the_session_costs_no_later_call(self, make, stdio, monkeypatch):
        monkeypatch.setattr(session, "PING_S", 0.3)
        upstream = make("fragile")
        link = await upstream.open(ALICE)
        running = asyncio.ensure_future(upstream.perform(link, call := call_of(upstream, "gate", name="a")))
        await stdio.until(lambda: stdio.calls("gate"))
        await upstream.cancel(link, call)
        running.cancel()
        with pytest.raises(NotSent):
            await ask(upstream, link, "echo")
        assert await ask(upstream, await upstream.open(ALICE), "echo") == "{}"
        assert len(stdio.calls("echo")) == 1

    async def test_of_what_was_never_sent_or_is_answered_tells_nothing(self, make, stdio):
        upstream = make()
        link = await upstream.open(ALICE)
        await upstream.cancel(link, call_of(upstream, "echo"))
        answered = call_of(upstream, "echo")
        await upstream.perform(link, answered)
        await upstream.cancel(link, answered)
        await ask(upstream, link, "echo")
        assert stdio.cancelled() == []

    async def test_after_the_caller_left_still_reaches_the_server(self, make, stdio):
        upstream = make()
        link = await upstream.open(ALICE)
        call = call_of(upstream, "gate", name="a")
        running = asyncio.ensure_future(upstream.perform(link, call))
        await stdio.until(lambda: stdio.calls("gate"))
        running.cancel()
        await asyncio.wait({running})
        await upstream.cancel(link, call)
        await stdio.until(lambda: stdio.cancelled() == [call.id])

    async def test_at_a_process_that_has_ended_is_no_error(self, make):
        upstream = make()
        link = await upstream.open(ALICE)
        await upstream.close()
        await upstream.cancel(link, call_of(upstream, "echo"))

    async def test_of_one_caller_leaves_the_others_alone(self, make, stdio):
        upstream = make()
        link = await upstream.open(ALICE)
        leaving, staying = (start(upstream, link, "gate", name=name) for name in "ab")
        await stdio.until(lambda: len(stdio.calls()) == 2)
        leaving.cancel()
        stdio.open("b")
        assert text_of(await staying) == "through b"


class TestQuestions:
    async def test_reach_the_call_and_their_answers_the_server(self, make):
        upstream = make()
        link = await upstream.open(ALICE, ELICITATION)
        asked = []

        async def on_request(method, params):
            asked.append((method, {name: bytes(value) for name, value in params.items()}))
            return True, b'{"action":"accept",\n"content":{"n":1e400}}'

        call = call_of(upstream, "question", params={"message": "ok?"})
        heard = json.loads(text_of(await upstream.perform(link, call, None, on_request)))
        assert asked == [("elicitation/create", {"message": b'"ok?"'})]
        assert heard["result"] == {"action": "accept", "content": {"n": float("inf")}}

    async def test_may_be_answered_with_an_error(self, make):
        upstream = make()
        link = await upstream.open(ALICE, ELICITATION)

        async def on_request(*_):
            return False, b'{"code":-1,"message":"no"}'

        heard = json.loads(text_of(await upstream.perform(link, call_of(upstream, "question"), None, on_request)))
        assert heard["error"] == {"code": -1, "message": "no"}

    async def test_are_refused_where_nobody_takes_them(self, make):
        upstream = make()
        for capabilities, on_request in (("{}", pytest.fail), (ELICITATION, None)):
            link = await upstream.open(ALICE, capabilities)
            answer = await upstream.perform(link, call_of(upstream, "ask"), None, on_request)
            first, second = json.loads(text_of(answer))
            assert (first["error"]["code"], second["result"]) == (-32601, {})

    async def test_make_calls_wait_for_each_other(self, make, stdio):
        upstream = make()
        link = await upstream.open(ALICE, ELICITATION)
        first = start(upstream, link, "gate", name="a")
        await stdio.until(lambda: stdio.calls("gate"))
        second = start(upstream, link, "echo")
        await ask(upstream, await upstream.open(BOB, ELICITATION), "echo", bob=1)
        assert [call["params"]["arguments"] for call in stdio.calls("echo")] == [{"bob": 1}]
        stdio.open("a")
        assert text_of(await first) == "through a"
        assert text_of(await second) == "{}"

    async def test_of_two_calls_come_from_processes_of_their_own_while_there_may_be_more(self, make, stdio):
        upstream = make(processes=2)
        links = [await upstream.open(ALICE, ELICITATION) for _ in range(3)]
        assert len({link.session_id for link in links}) == 2
        first = start(upstream, links[0], "gate", name="a")
        assert text_of(await start(upstream, links[1], "echo")) == "{}"
        stdio.open("a")
        assert text_of(await first) == "through a"
        assert (await upstream.open(ALICE, ELICITATION)).session_id in {link.session_id for link in links}

    async def test_end_with_their_call(self, make, stdio):
        """A process that may still ask on behalf of a call that nobody waits for takes no other call."""
        upstream = make()
        link = await upstream.open(ALICE, ELICITATION)
        asked, dropped = asyncio.Event(), asyncio.Event()

        async def on_request(*_):
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                dropped.set()

        call = call_of(upstream, "question")
        before = int(await ask(upstream, link, "pid"))
        running = asyncio.ensure_future(upstream.perform(link, call, None, on_request))
        await asked.wait()
        waiting = start(upstream, link, "echo")
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})
        await dropped.wait()
        with pytest.raises(NotSent) as caught:
            await waiting
        assert caught.value.again
        await upstream.cancel(link, call)
        await stdio.until(lambda: stdio.cancelled() == [call.id])
        assert await pid_of(upstream, ALICE, ELICITATION) != before
        await stdio.until(lambda: not alive(before))

    async def test_whose_taker_fails_are_answered_all_the_same(self, make, log):
        upstream = make()
        link = await upstream.open(ALICE, ELICITATION)

        async def on_request(*_):
            raise ZeroDivisionError

        heard = json.loads(text_of(await upstream.perform(link, call_of(upstream, "question"), None, on_request)))
        assert "error" in heard
        log.faults = ["ZeroDivisionError"]


LOST = {
    "an exit code": ("exit", {"code": 3}, "the upstream's process ended with exit code 3"),
    "a clean exit": ("exit", {"code": 0}, "the upstream's process ended with exit code 0"),
    "a signal": ("exit", {"signal": 9}, "the upstream's process was ended by signal 9"),
    "a closed output": ("mute", {}, "the upstream's process closed its standard output"),
    "a successor that holds the output": ("hold_output", {}, "the upstream's process ended with exit code 4"),
}


@requirement("OWN-ONCE", "OWN-EXIT")
class TestEnd:
    @pytest.mark.parametrize("how", LOST)
    async def test_of_the_process_is_told_to_every_call_at_once(self, make, stdio, how):
        tool, arguments, message = LOST[how]
        upstream = make()
        link = await upstream.open(ALICE)
        others = [start(upstream, link, "gate", name="a") for _ in range(3)]
        await stdio.until(lambda: len(stdio.calls("gate")) == 3)
        async with asyncio.timeout(3):
            outcomes = await asyncio.gather(*others, start(upstream, link, tool, **arguments), return_exceptions=True)
        assert [(type(one), one.reason, str(one)) for one in outcomes] == [
            (OutcomeUnknown, "upstream_down", message)
        ] * 4

    async def test_before_a_call_means_that_nothing_was_sent(self, make, stdio):
        upstream = make()
        link = await upstream.open(ALICE)
        with pytest.raises(OutcomeUnknown):
            await ask(upstream, link, "exit")
        with pytest.raises(NotSent) as caught:
            await ask(upstream, link, "echo")
        assert (caught.value.reason, caught.value.again) == ("upstream_down", True)
        assert await ask(upstream, await upstream.open(ALICE), "echo", a=1) == '{"a": 1}'
        assert len(stdio.calls("echo")) == 1

    async def test_after_the_answer_loses_nothing(self, make):
        upstream = make()
        link = await upstream.open(ALICE)
        assert len(await ask(upstream, link, "last_words", size=300_000)) == 300_000

    async def test_comes_with_a_line_that_never_ends(self, make, log):
        upstream = make()
        link = await upstream.open(ALICE)
        other = start(upstream, link, "gate", name="a")
        with pytest.raises(OutcomeUnknown, match="larger than max_result_bytes") as caught:
            await upstream.perform(link, call_of(upstream, "endless", max_bytes=10_000))
        assert caught.value.reason == "upstream_bad"
        with pytest.raises(OutcomeUnknown):
            await other
        await upstream.close()
        assert [one["wanted"] for one in log.said("upstream_exited")] == [False]

    async def test_comes_after_the_answer_where_the_server_stops_to_listen(self, make, stdio):
        upstream = make()
        link = await upstream.open(ALICE)
        assert await ask(upstream, link, "deaf") == "heard"
        (before,) = {entry["pid"] for entry in stdio.entries}
        await stdio.until(lambda: not alive(before))
        assert await pid_of(upstream) != before

    async def test_of_a_caller_does_not_wait_for_half_a_line(self, make):
        upstream = make()
        link = await upstream.open(ALICE)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await ask(upstream, link, "half")

    async def test_is_logged_with_its_status(self, make, log, stdio):
        upstream = make()
        link = await upstream.open(ALICE)
        with pytest.raises(OutcomeUnknown):
            await ask(upstream, link, "exit", code=3)
        await stdio.until(lambda: log.said("upstream_exited"))
        await ask(upstream, await upstream.open(ALICE), "echo")
        await upstream.close()
        told = [(one["status"], one["wanted"], one["level"]) for one in log.said("upstream_exited")]
        assert told == [(3, False, "warning"), (0, True, "info")]
        metrics = log.telemetry.exposition().decode()
        assert 'mtg_upstream_processes{upstream="reports"} 0.0' in metrics
        assert 'mtg_upstream_process_starts_total{upstream="reports"} 2.0' in metrics


class TestBackoff:
    async def test_grows_with_each_start_that_comes_to_nothing(self, make, monkeypatch, stdio):
        monkeypatch.setattr(pool, "_PATIENCE_S", 0)
        monkeypatch.setattr(pool, "_FIRST_DELAY_S", 0.05)
        upstream = make("exit")
        delays = []
        for _ in range(3):
            with pytest.raises(NotSent, match="exit code 7"):
                await upstream.open(ALICE)
            with pytest.raises(NotSent, match="is started again in") as caught:
                await upstream.open(ALICE)
            assert caught.value.again
            assert "exit code 7" in str(caught.value)
            delays.append(upstream._troubles[ALICE, "{}", ""].not_before)
            await stdio.until(lambda: asyncio.get_running_loop().time() > delays[-1])
        counts = [upstream._troubles[ALICE, "{}", ""].count]
        assert counts == [2]

    async def test_is_waited_for_while_it_is_short(self, make, log):
        upstream = make()
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await ask(upstream, await upstream.open(ALICE), "exit")
        assert len(log.pids()) == 2

    async def test_counts_a_process_that_died_young(self, make, monkeypatch, stdio):
        monkeypatch.setattr(pool, "_PATIENCE_S", 0)
        upstream = make()
        with pytest.raises(OutcomeUnknown):
            await ask(upstream, await upstream.open(ALICE), "exit")
        with pytest.raises(NotSent, match=r"exit code 3; it is started again in 0\.\d s"):
            await upstream.open(ALICE)
        assert await pid_of(upstream, BOB)

    async def test_forgets_after_one_that_lived(self, make, monkeypatch):
        monkeypatch.setattr(pool, "_SHORT_LIFE_S", 0)
        upstream = make()
        for _ in range(5):
            with pytest.raises(OutcomeUnknown):
                await ask(upstream, await upstream.open(ALICE), "exit")
        assert upstream._troubles == {}

    async def test_is_bounded(self, make):
        upstream = make()
        for _ in range(40):
            upstream._failed((ALICE, "{}", ""), "it broke")
        with pytest.raises(NotSent, match=r"it broke; it is started again in (10\.0|9\.\d) s"):
            await upstream.open(ALICE)


class TestSharing:
    @requirement("OWN-APART")
    async def test_two_principals_have_two_processes(self, make):
        upstream = make()
        alice, bob = await upstream.open(ALICE), await upstream.open(BOB)
        await ask(upstream, alice, "remember", what="hers")
        assert await ask(upstream, bob, "recall") == "[]"
        assert await ask(upstream, alice, "recall") == '["hers"]'
        assert await pid_of(upstream, ALICE) != await pid_of(upstream, BOB)

    async def test_what_was_declared_is_part_of_the_session(self, make):
        upstream = make()
        assert await pid_of(upstream, ALICE) != await pid_of(upstream, ALICE, ELICITATION)

    async def test_the_one_unused_for_longest_makes_room(self, make, stdio):
        upstream = make(processes=2)
        alice, bob = await pid_of(upstream, ALICE), await pid_of(upstream, BOB)
        assert await pid_of(upstream, ALICE) == alice
        carol = await pid_of(upstream, CAROL)
        assert [alive(pid) for pid in (alice, bob, carol)] == [True, False, True]

    async def test_one_that_works_makes_no_room(self, make, stdio):
        upstream = make(processes=1)
        link = await upstream.open(ALICE)
        running = start(upstream, link, "gate", name="a")
        with pytest.raises(NotSent) as caught:
            await upstream.open(BOB)
        assert (caught.value.reason, caught.value.again) == ("upstream_down", True)
        assert str(caught.value) == "all 1 processes of the upstream are busy"
        stdio.open("a")
        await running
        assert await pid_of(upstream, BOB)

    async def test_one_that_was_opened_makes_no_room_before_it_is_called(self, make):
        upstream = make(processes=1)
        link = await upstream.open(ALICE)
        with pytest.raises(NotSent, match="busy"):
            await upstream.open(BOB)
        await ask(upstream, link, "echo")
        assert await pid_of(upstream, BOB)

    async def test_one_that_was_opened_for_nothing_makes_room_after_a_while(self, make, monkeypatch):
        monkeypatch.setattr(session, "_HOLD_S", 0)
        upstream = make(processes=1)
        await upstream.open(ALICE)
        assert await pid_of(upstream, BOB)

    async def test_there_are_never_more_than_allowed(self, make, log):
        upstream = make(processes=2)
        owners = [Owner("issuer", f"subject-{number}", "t", "reports") for number in range(8)]
        most = 0

        async def use(owner):
            nonlocal most
            for _ in range(200):
                try:
                    link = await upstream.open(owner)
                    most = max(most, sum(alive(pid) for pid in log.pids()))
                    return await ask(upstream, link, "pid")
                except NotSent:
                    await asyncio.sleep(0.02)
            raise AssertionError

        pids = await asyncio.gather(*map(use, owners))
        assert (len(set(pids)), most) == (8, 2)

    async def test_an_unused_one_ends_and_one_that_works_does_not(self, make, stdio):
        upstream = make(idle_s=0.2)
        running = start(upstream, await upstream.open(ALICE), "gate", name="a")
        await stdio.until(lambda: stdio.calls("gate"))
        for _ in range(2):
            unused = await pid_of(upstream, BOB)
            await stdio.until(lambda pid=unused: not alive(pid))
        stdio.open("a")
        assert text_of(await running) == "through a"
        busy = stdio.entries[0]["pid"]
        await stdio.until(lambda: not alive(busy))
        assert await pid_of(upstream, ALICE) != busy


class TestStandardError:
    async def test_is_logged_line_by_line_and_cut(self, make, log, stdio):
        upstream = make()
        text = "one\n\n" + "x" * 5000 + "\ncaf\u00e9, and no end of the line"
        await ask(upstream, await upstream.open(ALICE), "complain", text=text)
        await upstream.close()
        lines = log.said("upstream_stderr")
        assert [one["line"] for one in lines] == ["one", "x" * 1024, "caf\u00e9, and no end of the line"]
        assert {(one["upstream"], one["level"]) for one in lines} == {("reports", "info")}

    async def test_of_any_size_holds_nothing_up_and_is_counted(self, make, log):
        upstream = make()
        assert await ask(upstream, await upstream.open(ALICE), "errors", bytes=10_000_000) == "done"
        await upstream.close()
        logged = len(log.said("upstream_stderr"))
        left_out = sum(one["lines"] for one in log.said("upstream_stderr_left_out"))
        assert logged + left_out == 10_000_000 // 80
        assert left_out > logged


@requirement("OWN-ORPHANS")
class TestClose:
    async def test_ends_a_server_by_closing_its_input(self, make, log):
        upstream = make()
        await ask(upstream, await upstream.open(ALICE), "echo")
        await upstream.close()
        assert [one["status"] for one in log.said("upstream_exited")] == [0]

    async def test_ends_a_stubborn_server_and_what_it_started(self, make, log):
        """In its group and outside of it; none of them minds SIGTERM."""
        upstream = make("stubborn")
        link = await upstream.open(ALICE)
        started = [int(await ask(upstream, link, "spawn", detached=detached)) for detached in (False, True)]
        assert all(map(alive, started))
        await upstream.close()
        assert not any(map(alive, [*started, *log.pids()]))
        assert [one["status"] for one in log.said("upstream_exited")] == [-signal.SIGKILL]

    async def test_in_a_hurry_does_not_ask_a_server_twice(self, make, log):
        upstream = make("late")
        await upstream.open(ALICE)
        closing = asyncio.ensure_future(upstream.close())
        await asyncio.sleep(0)
        upstream.hurry()
        await closing
        assert [one["status"] for one in log.said("upstream_exited")] == [-signal.SIGKILL]

    async def test_of_many_takes_no_longer_than_of_one(self, make, log):
        upstream = make()
        owners = [Owner("issuer", f"subject-{number}", "t", "reports") for number in range(20)]
        await asyncio.gather(*map(upstream.open, owners))
        await upstream.close()
        assert len(log.said("upstream_exited")) == 20

    async def test_tells_the_truth_about_what_is_under_way(self, make, stdio):
        upstream = make()
        running = start(upstream, await upstream.open(ALICE), "gate", name="a")
        await stdio.until(lambda: stdio.calls("gate"))
        await upstream.close()
        with pytest.raises(OutcomeUnknown):
            await running

    async def test_while_a_server_starts_leaves_nothing(self, make, log):
        upstream = make("never-ready")
        opening = asyncio.ensure_future(upstream.open(ALICE))
        while not log.pids():
            await asyncio.sleep(0)
        await upstream.close()
        with pytest.raises(NotSent):
            await opening

    async def test_is_for_good(self, make):
        upstream = make()
        await upstream.close()
        with pytest.raises(NotSent, match="stopping") as caught:
            await upstream.open(ALICE)
        assert not caught.value.again


class TestKeeper:
    def keeper_of(self, pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    async def test_that_is_killed_takes_the_server_with_it(self, make, log, stdio):
        upstream = make("stubborn")
        link = await upstream.open(ALICE)
        started = int(await ask(upstream, link, "spawn"))
        running = start(upstream, link, "gate", name="a")
        await stdio.until(lambda: stdio.calls("gate"))
        (server,) = log.pids()
        os.kill(self.keeper_of(server), signal.SIGKILL)
        with pytest.raises(OutcomeUnknown, match="was ended by signal 9"):
            await running
        await stdio.until(lambda: not alive(server) and not alive(started))

    async def test_that_is_asked_to_end_ends_the_server(self, make, log, stdio):
        upstream = make()
        await upstream.open(ALICE)
        (server,) = log.pids()
        os.kill(self.keeper_of(server), signal.SIGTERM)
        await stdio.until(lambda: not alive(server))

    async def test_ends_what_a_server_that_crashed_has_left(self, make, log, stdio):
        upstream = make()
        link = await upstream.open(ALICE)
        started = [int(await ask(upstream, link, "spawn", detached=detached)) for detached in (False, True)]
        with pytest.raises(OutcomeUnknown):
            await ask(upstream, link, "exit")
        await stdio.until(lambda: not any(map(alive, started)))

    async def test_is_in_another_session_than_the_gateway_and_the_server_in_its_own(self, make, log):
        upstream = make()
        await upstream.open(ALICE)
        (server,) = log.pids()
        keeper = self.keeper_of(server)
        assert os.getsid(server) == os.getpgid(server) == server
        assert os.getsid(keeper) == keeper != os.getsid(0)


def test_messages_name_exit_codes_and_signals():
    assert re.fullmatch(r".* exit code 3", child._epitaph(3))
    assert re.fullmatch(r".* signal 15", child._epitaph(-15))
