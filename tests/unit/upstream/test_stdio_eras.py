"""Which era a server over standard streams speaks: found out once, whatever the server does when it is asked."""

import asyncio
import json
from pathlib import Path

import pytest

from gateway.upstream import discovery
from gateway.upstream.port import NotSent
from gateway.wire.errors import Era
from tests.requirements import requirement
from tests.stdio_server import ALICE, BOB, MODERN_SERVER, Stdio, call_of, text_of

CAN = '{"elicitation":{}}'


@pytest.fixture
def modern(tmp_path: Path) -> Stdio:
    folder = tmp_path / "modern"
    folder.mkdir()
    return Stdio(folder, MODERN_SERVER)


async def ask(upstream, link, tool, **arguments):
    return text_of(await upstream.perform(link, call_of(upstream, tool, **arguments)))


class TestOld:
    @requirement("OWN-ERA")
    async def test_a_server_is_asked_once_for_all_principals(self, make, stdio):
        upstream = make()
        links = await asyncio.gather(*(upstream.open(owner) for owner in (ALICE, BOB)))
        assert {link.version for link in links} == {"2025-06-18"}
        assert stdio.methods().count("server/discover") == 1

    @requirement("OWN-ERA")
    async def test_a_server_that_answers_nothing_is_waited_for_once(self, make, stdio, monkeypatch):
        monkeypatch.setattr(discovery, "PROBE_S", 0.2)
        upstream = make("silent")
        first, second = await asyncio.gather(upstream.open(ALICE), upstream.open(BOB))
        assert (first.version, second.version) == ("2025-06-18", "2025-06-18")
        await upstream.open(ALICE, CAN)
        assert stdio.methods().count("server/discover") <= 2
        assert stdio.methods().count("initialize") == 3

    @requirement("OWN-ERA")
    async def test_a_session_outlives_the_question_that_its_server_did_not_answer(self, make, monkeypatch):
        monkeypatch.setattr(discovery, "PROBE_S", 0.2)
        upstream = make("silent")
        link = await upstream.open(ALICE, CAN)
        assert await ask(upstream, link, "echo") == "{}"

    @requirement("OWN-ERA")
    async def test_a_server_that_ends_when_it_is_asked_is_started_again(self, make, stdio, log):
        upstream = make("strict")
        assert (await upstream.open(ALICE)).version == "2025-06-18"
        assert (await upstream.open(BOB)).version == "2025-06-18"
        assert stdio.methods().count("server/discover") == 1
        assert [entry["status"] for entry in log.said("upstream_exited")] == [8]

    async def test_a_server_that_always_ends_is_started_twice_and_no_more(self, make, log):
        upstream = make("exit")
        with pytest.raises(NotSent, match="exit code 7") as caught:
            await upstream.open(ALICE)
        assert caught.value.again
        assert len(log.pids()) == 2

    async def test_an_era_that_is_told_is_not_asked_for(self, make, stdio):
        link = await make(era=Era.LEGACY).open(ALICE)
        assert (link.version, stdio.methods()[0]) == ("2025-06-18", "initialize")

    async def test_an_era_that_was_told_wrong_fails(self, make):
        with pytest.raises(NotSent, match="does not speak the era") as caught:
            await make(era=Era.MODERN).open(ALICE)
        assert (caught.value.reason, caught.value.again) == ("upstream_bad", False)


class TestModern:
    async def test_one_process_serves_all_calls_of_a_principal(self, make, modern):
        upstream = make(command=modern.command())
        plain, asking = await asyncio.gather(upstream.open(ALICE), upstream.open(ALICE, CAN))
        running = [
            asyncio.ensure_future(ask(upstream, link, "gate", name=name))
            for link, name in ((plain, "a"), (asking, "b"), (asking, "c"))
        ]
        await modern.until(lambda: len(modern.calls("gate")) == 3)
        for name in "cba":
            modern.open(name)
        assert await asyncio.gather(*running) == ["through a", "through b", "through c"]
        assert (plain.capabilities, asking.capabilities) == ("{}", CAN)
        again = await upstream.open(ALICE, CAN)
        assert again.session_id in (plain.session_id, asking.session_id)

    async def test_after_the_first_answer_there_is_one_process(self, make, modern, log):
        upstream = make(command=modern.command())
        for capabilities in ("{}", CAN, '{"roots":{}}'):
            await upstream.open(ALICE, capabilities)
        await upstream.open(BOB)
        assert len(log.pids()) == 2
        assert [method for method in modern.methods() if method == "initialize"] == []

    @pytest.mark.parametrize("mode", ["slow-start", "slow-start-reversed"])
    async def test_a_process_that_starts_slowly_is_started_again_and_known(self, make, modern, log, monkeypatch, mode):
        monkeypatch.setattr(discovery, "PROBE_S", 0.2)
        upstream = make(command=modern.command(mode))
        assert await ask(upstream, await upstream.open(ALICE), "echo") == "{}"
        assert modern.methods() == ["server/discover", "initialize", "server/discover", "tools/call"]
        assert len(log.pids()) == 2

    async def test_a_server_without_a_common_version_is_not_greeted_otherwise(self, make, modern):
        with pytest.raises(NotSent, match="no revision that the gateway speaks") as caught:
            await make(command=modern.command("other-version")).open(ALICE)
        assert not caught.value.again
        assert modern.methods() == ["server/discover"]

    async def test_a_modern_server_that_is_told_to_be_old_fails(self, make, modern):
        with pytest.raises(NotSent, match="did not complete the handshake"):
            await make(command=modern.command(), era=Era.LEGACY).open(ALICE)

    async def test_nothing_is_written_but_requests_and_cancellations(self, make, modern):
        upstream = make(command=modern.command())
        link = await upstream.open(ALICE, CAN)
        assert await ask(upstream, link, "chatter") == "done"
        await upstream.tell(link, "notifications/roots/list_changed", {})
        assert await ask(upstream, link, "echo") == "{}"
        assert modern.methods() == ["server/discover", "tools/call", "tools/call"]
        assert all("method" in message for message in modern.seen)

    async def test_a_request_goes_on_in_another_process_when_its_own_has_ended(self, make, modern):
        upstream = make(command=modern.command())
        link = await upstream.open(ALICE, CAN)

        async def on_request(method, params):
            with pytest.raises(Exception, match="ended with exit code 3"):
                await ask(upstream, link, "die")
            return True, b'{"action":"decline"}'

        answer = await upstream.perform(link, call_of(upstream, "form"), None, on_request)
        assert json.loads(text_of(answer)) == {"who": {"action": "decline"}}
        pids = {entry["pid"] for entry in modern.entries if entry["message"]["method"] == "tools/call"}
        assert len(pids) == 2

    async def test_a_subscription_keeps_no_process_alive_and_follows_to_the_next(self, make, modern, monkeypatch):
        monkeypatch.setattr("gateway.upstream.stdio._LISTEN_PAUSE_S", 0.01)
        upstream = make(command=modern.command(), processes=1)
        link = await upstream.open(ALICE)
        heard: asyncio.Queue = asyncio.Queue()
        listening = asyncio.ensure_future(upstream.listen(link, heard.put_nowait, None))
        await modern.until(lambda: "subscriptions/listen" in modern.methods())
        assert await ask(upstream, link, "echo") == "{}"
        await ask(upstream, await upstream.open(BOB), "echo")  # makes room
        other = await upstream.open(ALICE)
        await modern.until(lambda: modern.methods().count("subscriptions/listen") == 2)
        await ask(upstream, other, "changed")
        async with asyncio.timeout(10):
            assert (await heard.get()).method == "notifications/tools/list_changed"
        listening.cancel()
