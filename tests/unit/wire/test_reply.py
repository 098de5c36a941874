"""What goes back to a requestor: one message with its HTTP status."""

import pytest

from gateway.wire import reply
from gateway.wire.errors import Era, Reject
from gateway.wire.render import SERVER_INFO
from gateway.wire.reply import Reply
from tests.requirements import requirement
from tests.unit.wire.samples import SERVER, compact

META = b'"_meta":' + compact({SERVER: SERVER_INFO})


def test_accepted_has_no_body():
    assert Reply(202, b"", {}, "") == reply.ACCEPTED


def test_a_result_stands_as_it_is():
    assert reply.result(b'"a"', b'{ "x" : 1 }') == Reply(
        200, b'{"jsonrpc":"2.0","id":"a","result":{ "x" : 1 }}', {}, ""
    )


def test_a_result_may_come_with_headers():
    headers = {"Mcp-Session-Id": "s"}
    assert reply.result(b"1", b"{}", headers) == Reply(200, b'{"jsonrpc":"2.0","id":1,"result":{}}', headers, "")


@requirement("OWN-BYTES")
def test_a_legacy_client_gets_the_result_of_a_call_as_it_was_written():
    found = reply.call_result(b"1", b'{ "content" : [ ] , "n" : 1.0 }', Era.LEGACY)
    assert found == Reply(200, b'{"jsonrpc":"2.0","id":1,"result":{ "content" : [ ] , "n" : 1.0 }}')


@requirement("BR-2")
def test_a_modern_client_sees_one_result_type():
    found = reply.call_result(b"1", b'{"resultType":"complete","content":[]}', Era.MODERN)
    assert found.body.count(b"resultType") == 1


@requirement("TX-HTTP-6")
@pytest.mark.parametrize(
    ("code", "shown", "status"),
    [
        (b"-32020", b"-32020", 400),
        (b"-32021", b"-32021", 400),
        (b"-32022", b"-32022", 400),
        (b"-32601", b"-32601", 404),
        (b"-32602", b"-32602", 200),
        (b"-32002", b"-32602", 200),
        (b"-32042", b"-32603", 200),
        (b"5", b"5", 200),
    ],
)
def test_within_the_modern_era_codes_keep_their_meaning_and_their_status(code, shown, status):
    rest = b',"message":"no","data":{"a":1.0}}'
    found = reply.passed_error(b"1", b'{"code":' + code + rest)
    assert found == Reply(status, b'{"jsonrpc":"2.0","id":1,"error":{"code":' + shown + rest + b"}", {}, "error")


@requirement("TX-HTTP-5")
def test_a_modern_client_gets_the_result_of_a_call_with_its_type():
    found = reply.call_result(b"1", b'{ "content" : [ ] , "n" : 1.0 }', Era.MODERN)
    body = b'{"resultType":"complete","content":[ ],"n":1.0,' + META + b"}"
    assert found == Reply(200, b'{"jsonrpc":"2.0","id":1,"result":' + body + b"}")


@requirement("TX-HTTP-6")
@pytest.mark.parametrize(
    ("era", "code", "shown"),
    [
        (Era.LEGACY, b"-32002", b"-32002"),
        (Era.MODERN, b"-32002", b"-32602"),
        (Era.LEGACY, b"-32042", b"-32042"),
        (Era.MODERN, b"-32042", b"-32603"),
        (Era.LEGACY, b"-7", b"-7"),
        (Era.MODERN, b"-7", b"-7"),
    ],
)
def test_an_error_of_the_upstream_passes_but_for_codes_that_the_era_reserves(era, code, shown):
    rest = b',"message":"no","data":{"a":1.0}}'
    found = reply.call_error(b"1", b'{"code":' + code + rest, era)
    assert found == Reply(200, b'{"jsonrpc":"2.0","id":1,"error":{"code":' + shown + rest + b"}", {}, "error")


@requirement("OWN-ERRORS")
@pytest.mark.parametrize(
    ("request_id", "written", "era", "status", "code"),
    [
        (b"1", b"1", Era.LEGACY, 200, b"-32601"),
        (b"1", b"1", Era.MODERN, 400, b"-32021"),
        (None, b"null", Era.MODERN, 400, b"-32021"),
    ],
)
def test_a_refusal_has_the_status_of_its_era(request_id, written, era, status, code):
    error = b'{"code":' + code + b',"message":"m","data":{"reason":"task_required","retryable":false,"limit":3}}'
    found = reply.refusal(request_id, Reject("task_required", "m", {"limit": 3}), era)
    body = b'{"jsonrpc":"2.0","id":' + written + b',"error":' + error + b"}"
    assert found == Reply(status, body, {}, "task_required", {"limit": 3})


@requirement("OWN-ERRORS")
@pytest.mark.parametrize("era", Era)
@pytest.mark.parametrize(("status", "found"), [(None, 200), (202, 202), (400, 400)])
def test_what_is_no_request_may_be_refused_with_another_status(era, status, found):
    error = b'{"code":-32602,"message":"m","data":{"reason":"arguments","retryable":false}}'
    body = b'{"jsonrpc":"2.0","id":null,"error":' + error + b"}"
    refused = reply.refusal(None, Reject("arguments", "m"), era, status=status)
    assert refused == Reply(found, body, {}, "arguments", {})
