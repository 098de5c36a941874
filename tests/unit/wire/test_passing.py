"""What changes in a message that is only carried, from one era to the other and within one."""

import json

import pytest

from gateway.wire import passing
from gateway.wire.errors import TASKS_EXTENSION, Era
from gateway.wire.jsonrpc import Notification, members, write
from tests.requirements import requirement
from tests.unit.wire.samples import compact


@requirement("BR-2")
@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b'{"resultType":"complete","content":[ ]}', b'{"content":[ ]}'),
        (b'{"resultType":"complete","ttlMs":1,"cacheScope":"public","x":1.0}', b'{"x":1.0}'),
        (b'{"ttlMs":1,"cacheScope":"public"}', b'{"ttlMs":1,"cacheScope":"public"}'),
        (b'{ "content":["resultType"] }', b'{ "content":["resultType"] }'),
        (b'{ "x":{"resultType":"complete"} }', b'{ "x":{"resultType":"complete"} }'),
    ],
)
def test_a_legacy_client_sees_nothing_of_the_modern_era(written, shown):
    assert passing.legacy_result(written) == shown


@requirement("TX-HTTP-5", "OWN-BYTES")
@pytest.mark.parametrize(
    ("method", "written", "shown"),
    [
        ("prompts/get", b'{ "resultType":"complete", "n":1.0}', None),
        ("prompts/get", b'{"n":1.0}', b'{"n":1.0,"resultType":"complete"}'),
        ("resources/read", b'{ "resultType":"complete","ttlMs":5,"cacheScope":"public"}', None),
        ("resources/read", b'{ "resultType":"input_required","requestState":"s"}', None),
        (
            "resources/list",
            b'{"resultType":"complete","ttlMs":5}',
            b'{"resultType":"complete","ttlMs":5,"cacheScope":"private"}',
        ),
    ],
)
def test_within_the_modern_era_only_what_is_missing_is_added(method, written, shown):
    assert passing.modern_result(method, written) == (shown or written)


@pytest.mark.parametrize(
    ("method", "client", "upstream", "level", "heard"),
    [
        ("notifications/unheard-of", Era.MODERN, Era.MODERN, None, True),
        ("notifications/unheard-of", Era.MODERN, Era.LEGACY, None, False),
        ("notifications/unheard-of", Era.LEGACY, Era.MODERN, None, True),
        ("notifications/message", Era.MODERN, Era.MODERN, None, False),
        ("notifications/message", Era.MODERN, Era.MODERN, "info", True),
        ("notifications/message", Era.MODERN, Era.MODERN, "critical", False),
        ("notifications/message", Era.LEGACY, Era.MODERN, None, True),
        ("notifications/tasks", Era.MODERN, Era.MODERN, "debug", False),
    ],
)
def test_who_hears_what_during_a_request(method, client, upstream, level, heard):
    note = Notification(method, members(b'{"level":"error"}'))
    assert passing.may_hear(note, client, level, upstream=upstream) is heard


@requirement("BR-4")
@pytest.mark.parametrize(
    ("client", "upstream", "shown"),
    [
        (Era.LEGACY, Era.LEGACY, {"logging", "extensions"}),
        (Era.LEGACY, Era.MODERN, {"logging", "extensions"}),
        (Era.MODERN, Era.LEGACY, {"extensions"}),
        (Era.MODERN, Era.MODERN, {"logging", "extensions"}),
    ],
)
def test_capabilities_are_told_but_for_tasks_and_what_an_era_cannot_use(client, upstream, shown):
    told = compact({"tasks": {}, "logging": {}, "extensions": {TASKS_EXTENSION: {}, "x": {"n": 1}}})
    found = json.loads(write(passing.capabilities(told, client, upstream)))
    assert (set(found), found["extensions"]) == (shown, {"x": {"n": 1}})


@requirement("BR-4")
def test_answers_and_a_level_go_to_an_upstream_that_asked_and_knows_levels():
    given = members(b'{"name":"x","inputResponses":{},"requestState":"s"}')
    assert write(passing.params(given, None, None)[0]) == b'{"name":"x"}'
    told = b'{"name":"x","inputResponses":{},"requestState":"s","_meta":{"io.modelcontextprotocol/logLevel":"info"}}'
    assert write(passing.params(given, None, None, answers=True, log_level="info")[0]) == told


@requirement("BR-3")
@pytest.mark.parametrize(
    ("params", "told"),
    [
        (b'{"progress":1.0,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"x"}}}', b'{"progress":1.0}'),
        (
            b'{"_meta":{"a":1.0,"io.modelcontextprotocol/related-task":{"taskId":"x"}},"n":1}',
            b'{"n":1,"_meta":{"a":1.0}}',
        ),
        (b'{"_meta":{"a":1.0},"n":1}', b'{"_meta":{"a":1.0},"n":1}'),
        (b'{"_meta":5}', b'{"_meta":5}'),
    ],
)
def test_a_client_does_not_hear_of_the_task_of_an_upstream(params, told):
    assert write(passing.said(Notification("notifications/progress", members(params)))) == told


def test_where_an_idempotency_key_may_stand_is_told_beside_the_experiments_of_the_upstream():
    told = b'{"experimental":{"x":{"n":1.0}},"tools":{}}'
    found = write(passing.capabilities(told, Era.LEGACY, Era.LEGACY, ["a/b"]))
    ours = b'"io.github.mcp-task-gateway/idempotency":{"metaKeys":["a/b"]}'
    assert found == b'{"experimental":{"x":{"n":1.0},' + ours + b'},"tools":{}}'
