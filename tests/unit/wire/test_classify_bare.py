"""The same ladder for messages that came without headers."""

import pytest

from gateway.wire import intent as want
from gateway.wire.classify import Rejected, classify_bare
from gateway.wire.errors import Era
from gateway.wire.intent import Inbound, Speech
from gateway.wire.jsonrpc import parse
from tests.requirements import requirement
from tests.unit.wire.samples import CAPABILITIES, DECLARED, VERSION, body, compact, modern_meta


def bare(message, session="s-1"):
    return classify_bare(parse(message), session)


def modern(method, params=None, **meta):
    return body(method, {**(params or {}), "_meta": {**modern_meta(DECLARED), **meta}})


@requirement("OWN-STDIO")
@pytest.mark.parametrize("session", [None, "s-1"])
@pytest.mark.parametrize(
    ("message", "intent"),
    [
        (modern("server/discover"), want.Discover(b"1")),
        (modern("tasks/get", {"taskId": "t"}), want.GetTask(b"1", "t")),
        (modern("subscriptions/listen", {"notifications": {"taskIds": ["t"]}}), want.Listen(b"1", ("t",))),
    ],
)
def test_a_modern_meta_makes_it_modern_and_there_is_nothing_for_it_to_equal(message, intent, session):
    found = bare(message, session)
    assert found.intent == intent
    assert (found.speech.era, found.speech.session, found.speech.declares_tasks) == (Era.MODERN, None, True)


@requirement("OWN-STDIO")
@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (body("tools/list", {"_meta": {VERSION: "2026-07-28"}}), "meta"),
        (modern("tools/list", **{VERSION: "2025-11-25"}), "version"),
        (modern("tools/list", **{VERSION: 1}), "version"),
        (modern("tasks/get", {"taskId": "t"}, **{CAPABILITIES: {}}), "capability"),
    ],
)
def test_every_other_rung_is_as_over_http(message, reason):
    found = bare(message)
    assert isinstance(found, Rejected)
    assert (found.reject.reason, found.era, found.id) == (reason, Era.MODERN, b"1")


@requirement("OWN-STDIO")
def test_everything_else_belongs_to_the_session_that_the_front_began():
    speech = Speech(Era.LEGACY, None, session="s-1")
    assert bare(body("ping")) == Inbound(speech, want.Ping(b"1"))
    assert bare(body("notifications/x", id=None)) == Inbound(speech, want.Note("notifications/x"))
    answer = compact({"jsonrpc": "2.0", "id": "q", "result": {}})
    assert bare(answer) == Inbound(speech, want.ClientAnswer("q", ok=True, body=b"{}"))


@requirement("OWN-STDIO")
def test_a_modern_notification_needs_no_session():
    message = body("notifications/x", {"_meta": modern_meta()}, id=None)
    assert bare(message, None) == Inbound(Speech(Era.MODERN, None), want.Note("notifications/x"))


@requirement("OWN-STDIO")
def test_only_initialize_comes_before_the_session():
    assert isinstance(bare(body("initialize", {"protocolVersion": "2025-11-25"}), None).intent, want.Initialize)
    found = bare(body("tools/list"), None)
    assert isinstance(found, Rejected)
    assert (found.reject.reason, found.id) == ("session_missing", b"1")


@requirement("OWN-STDIO")
def test_there_are_no_headers_that_could_repeat_an_argument():
    assert bare(modern("tools/call", {"name": "x"})).speech.parameters is None
