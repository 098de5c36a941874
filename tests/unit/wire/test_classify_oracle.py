"""Our ladder against the SDK's: the same modern requests are accepted, the same ones refused with the same code."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound

from gateway.wire.classify import Rejected, classify, decode_header
from gateway.wire.errors import Era
from gateway.wire.intent import LEGACY_VERSIONS, MODERN_VERSIONS
from tests.requirements import requirement
from tests.unit.wire.samples import CAPABILITIES, DECLARED, MODERN, VERSION, compact, steady, thorough

MISSING = object()
WORDS = ["echo", "Echo", "", " x ", "é", "a\nb", "=?base64?ZWNobw==?=", "file:///a b"]
# Not among the methods: tasks/*. The oracle compares no Mcp-Name there and asks for no declaration; we do both.
METHODS = ["tools/call", "prompts/get", "resources/read", "tools/list", "server/discover", "tasks/result", "made/up"]


def mostly(right, wrong):
    """The right value, and every now and then another."""
    return st.sampled_from([right] * 8 + wrong)


def present(members):
    return {name: value for name, value in members.items() if value is not MISSING}


@st.composite
def metas(draw):
    """A `_meta`, complete or not. Capabilities are objects: of other ones the oracle sees only that they are there."""
    members = {
        VERSION: draw(mostly(MODERN, [MISSING, "2025-11-25", "2031-01-01", "", None, 5, [MODERN]])),
        CAPABILITIES: draw(st.sampled_from([{}, DECLARED, {"extensions": None}, {}, DECLARED, MISSING])),
        "io.modelcontextprotocol/clientInfo": draw(st.sampled_from([MISSING, {"name": "c"}, 5])),
        "progressToken": draw(st.sampled_from([MISSING, 1])),
    }
    return draw(mostly(present(members), [MISSING, None, [], "text"]))


@st.composite
def messages(draw):
    """A request. Names are strings or missing: of other ones we say that the arguments are wrong, not the headers."""
    method = draw(st.sampled_from(METHODS))
    params = {
        "name": draw(st.sampled_from([*WORDS, MISSING, None])),
        "uri": draw(st.sampled_from([*WORDS, MISSING, None])),
        "_meta": draw(metas()),
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": present(params)}


@st.composite
def headers_of(draw, message):
    """The headers that go with a request, or some that do not. Each comes once: duplicates never reach the oracle."""
    params = message["params"]
    meta = params["_meta"] if isinstance(params.get("_meta"), dict) else {}
    version = meta.get(VERSION) if isinstance(meta.get(VERSION), str) else MODERN
    named = params.get(inbound.NAME_BEARING_METHODS.get(message["method"]))
    encoded = MISSING if named is None else inbound.encode_header_value(named)
    wrong_names = [MISSING, "other", "=?base64?!?=", "=?base64?ZWNobx==?=", "=?base64?/w==?=", named or MISSING]
    headers = {
        "mcp-protocol-version": draw(mostly(version, [MISSING, MODERN, "2025-11-25", "2031-01-01", ""])),
        "mcp-method": draw(mostly(message["method"], [MISSING, "", "tools/call", "TOOLS/LIST"])),
        "mcp-name": draw(mostly(encoded, wrong_names)),
    }
    return present(headers)


@st.composite
def requests(draw):
    """A modern request with its headers.

    The body decides the era here, and the header only where neither modern key is in it; the oracle is never asked
    about legacy requests.
    """
    message = draw(messages())
    headers = draw(headers_of(message))
    meta = message["params"].get("_meta")
    speaks_modern = isinstance(meta, dict) and (VERSION in meta or CAPABILITIES in meta)
    if not speaks_modern and headers.get("mcp-protocol-version") in (None, *LEGACY_VERSIONS):
        headers["mcp-protocol-version"] = MODERN
    return message, headers


def ours(message, headers):
    """The code of our refusal, or None. Methods and arguments are no rungs of the ladder."""
    found = classify({name: [value] for name, value in headers.items()}, compact(message))
    if not isinstance(found, Rejected):
        assert found.speech.era is Era.MODERN
        return None
    assert (found.era, found.id) == (Era.MODERN, b"1")
    return found.reject.code(Era.MODERN), found.reject.data


def theirs(message, headers):
    """The code of the oracle's refusal, or None."""
    found = inbound.classify_inbound_request(message, headers=headers, supported_modern_versions=MODERN_VERSIONS)
    return (found.code, found.data or {}) if isinstance(found, inbound.InboundLadderRejection) else None


@requirement("TX-HTTP-2", "TX-HTTP-3", "TX-HTTP-4")
@thorough
@given(requests())
def test_the_ladder_agrees_with_the_sdk(request_and_headers):
    assert ours(*request_and_headers) == theirs(*request_and_headers)


def test_the_sdk_serves_the_modern_versions_that_we_serve():
    assert set(MODERN_VERSIONS) <= set(inbound.MODERN_PROTOCOL_VERSIONS)


@requirement("TX-HTTP-2")
@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        ("echo", "echo"),
        ("", ""),
        (" x ", " x "),
        ("é", "é"),
        ("=?base64??=", ""),
        ("=?base64?ZWNobw==?=", "echo"),
        ("=?base64?w6k=?=", "é"),
        ("=?base64?8J+YgA==?=", "\U0001f600"),
        ("=?BASE64?ZWNobw==?=", "=?BASE64?ZWNobw==?="),
        ("=?base64?ZWNobw==?= ", "=?base64?ZWNobw==?= "),
        ("x=?base64?ZWNobw==?=", "x=?base64?ZWNobw==?="),
        ("=?base64?ZWNobw==", "=?base64?ZWNobw=="),
        ("=?base64?ZWNobw?=", None),
        ("=?base64?ZWNobw===?=", None),
        ("=?base64?ZWNobx==?=", None),
        ("=?base64?ZW No bw==?=", None),
        ("=?base64?ZWNobw==\n?=", None),
        ("=?base64?-_==?=", None),
        ("=?base64?é?=", None),
        ("=?base64?/w==?=", None),
        ("=?base64?7aCA?=", None),
    ],
)
def test_a_header_is_decoded_strictly(value, decoded):
    assert decode_header(value) == decoded


@requirement("TX-HTTP-2")
@steady
@given(st.text("ab =?6é\u2028\U0001f600\n\x7f") | st.text("=?base64ZWNobw+/").map(lambda text: f"=?base64?{text}?="))
def test_whatever_the_sdk_encodes_is_decoded(value):
    assert decode_header(inbound.encode_header_value(value)) == value


# Line breaks never arrive in a header, and other than ASCII between the marks the oracle does not survive.
payloads = st.text("ABZabz059+/=_- !?", max_size=12) | st.binary(max_size=9).map(lambda raw: b64encode(raw).decode())


@requirement("TX-HTTP-2")
@thorough
@given(
    payloads, st.sampled_from(["=?base64?", "=?base64", "=?BASE64?", "x=?base64?"]), st.sampled_from(["?=", "?", ""])
)
def test_a_header_is_decoded_as_the_sdk_decodes_it(payload, before, after):
    value = before + payload + after
    assert decode_header(value) == inbound.decode_header_value(value)
