"""Envelopes: what is one message, and that everything else stays the bytes that arrived."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.wire import jsonrpc
from gateway.wire.errors import Era, Reject
from gateway.wire.jsonrpc import Notification, Request, Response, integer, items, members, parse, text, write
from tests.requirements import requirement
from tests.unit.wire.samples import steady


def call(request_id=b"1", method=b'"ping"', params=b"{}"):
    return b'{"jsonrpc":"2.0","id":' + request_id + b',"method":' + method + b',"params":' + params + b"}"


def refused(body):
    reject = parse(body)
    assert isinstance(reject, Reject)
    return reject.reason, reject.message


def plain(found):
    return None if found is None else {name: bytes(value) for name, value in found.items()}


IDS = [
    b'"a"',
    b'""',
    b'"\\u00e9\\/\\""',
    b"0",
    b"-0",
    b"7",
    b"-7",
    b"9007199254740993",
    b"1" * 256,
    b'"' + b"x" * 254 + b'"',
]
NO_IDS = [
    b"null",
    b"1.5",
    b"1.0",
    b"1e3",
    b"true",
    b"[1]",
    b'{"a":1}',
    b"1" * 257,
    b'"' + b"x" * 255 + b'"',
]


@requirement("OWN-BYTES")
@pytest.mark.parametrize("request_id", IDS)
def test_an_id_stays_as_it_was_written(request_id):
    assert parse(call(request_id)) == Request(request_id, "ping", {})
    answer = b'{"jsonrpc":"2.0","id":' + request_id + b',"result":{}}'
    assert parse(answer) == Response(request_id, ok=True, body=b"{}")


@requirement("OWN-LIMITS")
@pytest.mark.parametrize("request_id", NO_IDS)
def test_an_id_is_a_short_string_or_integer(request_id):
    assert refused(call(request_id)) == ("invalid_request", "an id is a string or an integer")
    answer = b'{"jsonrpc":"2.0","id":' + request_id + b',"result":{}}'
    assert refused(answer) == ("invalid_request", "an answer needs an id and an object")


@pytest.mark.parametrize(
    "version", [b"", b'"jsonrpc":"1.0",', b'"jsonrpc":2.0,', b'"jsonrpc":null,', b'"jsonrpc":"2",']
)
def test_a_message_says_that_it_is_json_rpc_2(version):
    body = b"{" + version + b'"id":1,"method":"ping"}'
    assert refused(body) == ("invalid_request", '"jsonrpc" must be "2.0"')


@requirement("OWN-LIMITS")
@pytest.mark.parametrize("body", [b"[]", b"[" + call() + b"]", b"5", b"null", b'"text"', b"true"])
def test_batches_and_values_are_no_message(body):
    assert refused(body) == ("invalid_request", "not a single JSON-RPC message")


@requirement("OWN-LIMITS")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        call()[:-1],
        call() + b"x",
        call() + call(),
        call() + b"\0",
        b"\xef\xbb\xbf" + call(),
        b"<html></html>",
        call(b"01"),
        call(b"-"),
        call(params=b'{"a":01}'),
        call(params=b'{"a":1.}'),
        call(params=b'{"a":NaN}'),
        call(params=b'{"a":undefined}'),
        call(params=b"{'a':1}"),
        call(params=b'{"a":1,}'),
        call(params=b'{"a":"\x01"}'),
        call(params=b'{"a":"\\q"}'),
        call(params=b'{"a":"\\u12g4"}'),
    ],
)
def test_what_is_not_json_is_a_parse_error(body):
    assert refused(body) == ("parse", "the body is not JSON")


@requirement("OWN-LIMITS")
@pytest.mark.parametrize("lone", [b"\\ud800", b"\\udc00", b"\\udbff\\u0041", b"\\udc00\\ud800"])
def test_a_lone_surrogate_is_a_parse_error_wherever_it_stands(lone):
    quoted = b'"' + lone + b'"'
    bodies = [
        call(quoted),
        call(method=quoted),
        call(params=b'{"a":' + quoted + b"}"),
        call(params=b'{"a":[{"b":' + quoted + b"}]}"),
        call(params=b"{" + quoted + b":1}"),
        b'{"other":' + quoted + b"," + call()[1:],
        b"{" + quoted + b":1," + call()[1:],
    ]
    assert [refused(body)[0] for body in bodies] == ["parse"] * len(bodies)


def test_a_pair_of_surrogates_is_text():
    message = parse(call(b'"\\ud83d\\ude00"', b'"\\ud83d\\ude00"', b'{"a":"\\ud83d\\ude00"}'))
    assert (message.id, message.method) == (b'"\\ud83d\\ude00"', "\U0001f600")
    assert plain(message.params) == {"a": b'"\\ud83d\\ude00"'}


@requirement("OWN-LIMITS")
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (call(params=b'{"a":"\xff"}'), "the body is not UTF-8"),
        (call(params=b'{"a":' + b"9" * 401 + b"}"), "a number is longer than 400 characters"),
        (
            call(params=b'{"a":' + b"[" * 63 + b"]" * 63 + b"}"),
            "nested deeper than 64 levels, or brackets do not match",
        ),
    ],
)
def test_the_limits_hold_before_anything_is_decoded(body, why):
    assert refused(body) == ("parse", why)


def test_sixty_four_levels_are_decoded():
    deep = b"[" * 62 + b"]" * 62
    assert plain(parse(call(params=b'{"a":' + deep + b"}")).params) == {"a": deep}


@requirement("OWN-LIMITS")
@pytest.mark.parametrize("method", [b'""', b"null", b"5", b"[]", b'{"a":1}', b'"' + b"m" * 257 + b'"'])
def test_a_method_is_a_short_name(method):
    assert refused(call(method=method)) == ("invalid_request", "the method is not a name")


def test_the_longest_method_passes():
    assert parse(call(method=b'"' + b"m" * 256 + b'"')).method == "m" * 256


@requirement("OWN-LIMITS")
@pytest.mark.parametrize("params", [b"[]", b"[1]", b"null", b'"text"', b"5", b"false"])
def test_params_are_an_object(params):
    assert refused(call(params=params)) == ("invalid_request", "params must be an object")


def test_params_may_be_missing():
    assert parse(b'{"jsonrpc":"2.0","id":1,"method":"ping"}') == Request(b"1", "ping", {})
    assert parse(b'{"jsonrpc":"2.0","method":"ping"}') == Notification("ping", {})


def test_without_an_id_it_is_a_notification():
    message = parse(b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress": 1.0}}')
    assert isinstance(message, Notification)
    assert message.method == "notifications/progress"
    assert plain(message.params) == {"progress": b"1.0"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","error":{}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","result":null}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":null}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0"}',
    ],
)
def test_a_message_has_either_a_method_or_one_answer(body):
    assert refused(body) == ("invalid_request", "a message has either a method or an answer")


@pytest.mark.parametrize(("member", "ok"), [(b"result", True), (b"error", False)])
def test_an_answer_is_kept_as_it_was_written(member, ok):
    body = b'{ "z" : 1.0 , "a" : [ "\\u00e9" ] }'
    message = parse(b'{"' + member + b'": ' + body + b' ,"id":"7","jsonrpc":"2.0"}')
    assert message == Response(b'"7"', ok=ok, body=body)


@pytest.mark.parametrize("member", [b"result", b"error"])
@pytest.mark.parametrize("value", [b"null", b"[]", b'"text"', b"5", b"true"])
def test_an_answer_is_an_object(member, value):
    body = b'{"jsonrpc":"2.0","id":1,"' + member + b'":' + value + b"}"
    assert refused(body) == ("invalid_request", "an answer needs an id and an object")


@pytest.mark.parametrize("member", [b"result", b"error"])
def test_an_answer_has_an_id(member):
    body = b'{"jsonrpc":"2.0","' + member + b'":{}}'
    assert refused(body) == ("invalid_request", "an answer needs an id and an object")


def test_unknown_members_of_an_envelope_change_nothing():
    body = b'{"future":{"a":[1]},"jsonrpc":"2.0","id":1,"method":"ping","params":{},"more":null}'
    assert parse(body) == Request(b"1", "ping", {})


def test_white_space_between_members_changes_nothing():
    body = b' \r\n{ "jsonrpc" :\t"2.0" , "id" : 7 , "method" : "ping" , "params" : { "a" : 1 } }\n'
    message = parse(body)
    assert (message.id, message.method, plain(message.params)) == (b"7", "ping", {"a": b"1"})


AS_WRITTEN = [
    b"9007199254740993",
    b"1e400",
    b"1.0",
    b"-0",
    b"-0.0",
    b"1E+2",
    b"0.1000000000000000055511151231257827",
    b"123456789012345678901234567890",
    b'"\\u00e9\\/\\n"',
    b'"\\ud83d\\ude00"',
    '"é\U0001f600\u2028"'.encode(),
    b'{ "b" : 1 ,\n "a" : [ 1 , 2 ] , "b" : 2 }',
    b"[ ]",
    b"null",
    b"true",
]


@requirement("OWN-BYTES")
@pytest.mark.parametrize("value", AS_WRITTEN)
def test_a_value_comes_out_as_it_went_in(value):
    written = b'{"z":' + value + b',"a":' + value + b"}"
    assert plain(members(written)) == {"z": value, "a": value}
    assert write(members(written)) == written
    assert write(parse(call(params=written)).params) == written


words = st.text('ab"\\/\n[]{}:,é\u2028\U0001f600', max_size=9)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
spellings = st.fixed_dictionaries(
    {"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 0, 2]), "separators": st.just((" , ", " : "))}
)


@requirement("OWN-BYTES")
@steady
@given(st.dictionaries(st.text("abcé_/", min_size=1), st.tuples(json_values, spellings), max_size=6))
def test_any_object_keeps_its_order_and_its_values(content):
    spelt = {name: json.dumps(value, **how).encode() for name, (value, how) in content.items()}
    written = b"{" + b",".join(json.dumps(n, ensure_ascii=False).encode() + b":" + v for n, v in spelt.items()) + b"}"
    assert list(plain(members(written)).items()) == list(spelt.items())
    assert write(members(written)) == written


def test_of_a_repeated_name_the_last_value_counts():
    assert plain(members(b'{"a":1,"b":2,"a":3}')) == {"a": b"3", "b": b"2"}
    assert parse(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"x","method":"y"}') == Request(b"2", "y", {})


@pytest.mark.parametrize("value", [b"[]", b"null", b"1", b'"a"', b"", b"{", b'{"a":1', b"{1:2}", b'{"a":1}x'])
def test_what_is_no_object_has_no_members(value):
    assert members(value) is None


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"[]", []),
        (b'[1.0, {"a" : 2} ,null]', [b"1.0", b'{"a" : 2}', b"null"]),
        (b"{}", []),
        (b"null", []),
        (b"7", []),
        (b"[1", []),
    ],
)
def test_the_items_of_an_array_are_as_written(value, found):
    assert [bytes(item) for item in items(Raw(value))] == found


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b'"a"', "a"),
        (b'""', ""),
        (b'"\\u00e9"', "é"),
        (b"null", None),
        (b"1", None),
        (b"[]", None),
        (b"{}", None),
        (b"true", None),
        (b'"\\ud800"', None),
    ],
)
def test_text_is_a_string_and_nothing_else(value, found):
    assert text(Raw(value)) == found


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"0", 0),
        (b"-0", 0),
        (b"-5", -5),
        (b"9007199254740993", 9007199254740993),
        (b"18446744073709551616", 18446744073709551616),
        (b"1.0", None),
        (b"1.5", None),
        (b"1e3", None),
        (b"1e400", None),
        (b'"5"', None),
        (b"true", None),
        (b"null", None),
        (b"[]", None),
    ],
)
def test_an_integer_is_written_as_one(value, found):
    assert integer(Raw(value)) == found


def test_what_is_not_there_is_nothing():
    assert (text(None), integer(None), items(None)) == (None, None, [])


def test_a_request_is_written_in_order():
    written = jsonrpc.request(b'"7"', "tools/call", {"name": "é", "arguments": Raw(b"{ }")})
    expected = '{"jsonrpc":"2.0","id":"7","method":"tools/call","params":{"name":"é","arguments":{ }}}'
    assert written == expected.encode()


def test_a_notification_has_no_id():
    written = jsonrpc.notification("notifications/cancelled", {"requestId": 3})
    assert written == b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}'


@requirement("OWN-BYTES")
@pytest.mark.parametrize("request_id", IDS)
def test_an_answer_carries_id_and_body_as_they_are(request_id):
    body = b'{ "a" : 1.0 }'
    assert jsonrpc.result(request_id, body) == b'{"jsonrpc":"2.0","id":' + request_id + b',"result":{ "a" : 1.0 }}'
    assert jsonrpc.error(request_id, body) == b'{"jsonrpc":"2.0","id":' + request_id + b',"error":{ "a" : 1.0 }}'
    assert parse(jsonrpc.result(request_id, body)) == Response(request_id, ok=True, body=body)
    assert parse(jsonrpc.error(request_id, body)) == Response(request_id, ok=False, body=body)


def test_without_a_readable_id_an_error_has_null():
    assert jsonrpc.error(None, b"{}") == b'{"jsonrpc":"2.0","id":null,"error":{}}'


@pytest.mark.parametrize(("era", "code"), [(Era.LEGACY, b"-32600"), (Era.MODERN, b"-32022")])
def test_a_refusal_is_an_error_in_the_words_of_the_era(era, code):
    data = b'{"reason":"version","retryable":false}'
    error = b'{"code":' + code + b',"message":"m","data":' + data + b"}"
    assert jsonrpc.refusal(b"1", Reject("version", "m"), era) == b'{"jsonrpc":"2.0","id":1,"error":' + error + b"}"
