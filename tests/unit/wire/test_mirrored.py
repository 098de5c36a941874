"""`x-mcp-header`: which arguments go into headers, checked against the SDK's reading of the same schemas."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound
from msgspec import Raw

from gateway.wire.mirrored import Mirror, Unusable, mirrored, mirrors, mismatch
from gateway.wire.modern_client import headers
from tests.requirements import requirement
from tests.unit.wire.samples import compact, thorough

REGION = {"type": "string", "x-mcp-header": "Region"}


def read(schema):
    return mirrors(Raw(compact(schema)))


def nested(**properties):
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"type": "object"}, ()),
        (nested(region=REGION), (Mirror(("region",), "Region"),)),
        (nested(a=nested(b=REGION)), (Mirror(("a", "b"), "Region"),)),
        (nested(**{"x-mcp-header": {"type": "string"}}), ()),
        (nested(a={"type": "string", "default": {"x-mcp-header": "A"}, "enum": [{"x-mcp-header": "B"}]}), ()),
        ({"$defs": {"a": {}}, "anyOf": [{}], **nested(region=REGION)}, (Mirror(("region",), "Region"),)),
        ([], ()),
        ("x-mcp-header", ()),
    ],
)
def test_annotations_are_found_where_properties_lead(schema, found):
    assert read(schema) == found


@pytest.mark.parametrize(
    "schema",
    [
        {"x-mcp-header": "Root", "type": "string"},
        nested(a={"type": "array", "items": REGION}),
        nested(a={"anyOf": [REGION]}),
        {"if": nested(a=REGION)},
        {"$defs": {"a": nested(b=REGION)}},
        {"patternProperties": {"properties": REGION}},
        nested(a={"type": "number", "x-mcp-header": "A"}),
        nested(a={"type": ["string", "null"], "x-mcp-header": "A"}),
        nested(a={"x-mcp-header": "A"}),
        nested(a={"type": "string", "x-mcp-header": ""}),
        nested(a={"type": "string", "x-mcp-header": "A\r\nX-Evil: 1"}),
        nested(a={"type": "string", "x-mcp-header": "A\n"}),
        nested(a={"type": "string", "x-mcp-header": "A B"}),
        nested(a={"type": "string", "x-mcp-header": "caf\u00e9"}),
        nested(a={"type": "string", "x-mcp-header": 5}),
        nested(a=REGION, b={"type": "string", "x-mcp-header": "rEGION"}),
    ],
)
def test_a_definition_that_breaks_a_rule_is_unusable(schema):
    found = read(schema)
    assert isinstance(found, Unusable)
    assert "x-mcp-header" in found.reason


def test_a_schema_with_a_number_that_cannot_be_read_is_unusable():
    assert isinstance(mirrors(Raw(b'{"maximum":1e400,"properties":{"a":{"x-mcp-header":"A"}}}')), Unusable)


def test_no_schema_asks_for_nothing():
    assert mirrors(None) == ()


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (b'{"a":"us"}', "us"),
        (b'{"a":"caf\\u00e9"}', "caf\u00e9"),
        (b'{"a":42}', "42"),
        (b'{"a":-7}', "-7"),
        (b'{"a":9007199254740993}', "9007199254740993"),
        (b'{"a":1.0}', "1.0"),
        (b'{"a":true}', "true"),
        (b'{"a":false}', "false"),
        (b'{"a":null}', None),
        (b'{"a":{"b":1}}', None),
        (b'{"a":[1]}', None),
        (b"{}", None),
        (b"[]", None),
    ],
)
def test_values_are_text_and_what_is_not_there_is_left_out(arguments, value):
    expected = {} if value is None else {"A": value}
    assert mirrored([Mirror(("a",), "A")], Raw(arguments)) == expected


def test_a_path_that_ends_early_is_left_out():
    assert mirrored([Mirror(("a", "b"), "B")], Raw(b'{"a":5}')) == {}
    assert mirrored([Mirror(("a", "b"), "B")], None) == {}


NAMES = st.sampled_from(["Region", "region", "X-1", "", "a b", "\r\n", 5, "caf\u00e9"])
TYPES = st.sampled_from(["string", "integer", "boolean", "number", "object", ["string"], None])
LEAVES = st.fixed_dictionaries({"type": TYPES}, optional={"x-mcp-header": NAMES})
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda found: {"type": "object", "properties": found}, st.dictionaries(st.sampled_from("abc"), inner)
        ),
        st.builds(lambda found: {"items": found}, inner),
        st.builds(lambda found: {"anyOf": found}, st.lists(inner, max_size=2)),
        st.builds(lambda found: {"$defs": {"properties": found}}, inner),
        st.builds(lambda found: {"default": found, "enum": [found]}, inner),
    ),
    max_leaves=8,
)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(st.characters(exclude_categories=["Cs"]))
    ),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
)


@thorough
@given(SCHEMAS, VALUES)
def test_schemas_are_read_as_the_sdk_reads_them(schema, arguments):
    found = read(schema)
    assert isinstance(found, Unusable) == (inbound.find_invalid_x_mcp_header(schema) is not None)
    if isinstance(found, Unusable):
        return
    known = inbound.x_mcp_header_map(schema)
    assert {mirror.path: mirror.name for mirror in found} == known
    given_ = arguments if isinstance(arguments, dict) else {}
    ours = headers("x", {}, "v", mirrored(found, Raw(json.dumps(given_).encode())))
    ours = {name: value for name, value in ours.items() if name.startswith("Mcp-Param-")}
    assert ours == inbound.mcp_param_headers(known, given_)


TYPES = nested(
    region=REGION,
    rows={"type": "integer", "x-mcp-header": "Rows"},
    dry={"type": "boolean", "x-mcp-header": "Dry"},
    deep=nested(name={"type": "string", "x-mcp-header": "Name"}),
)


def differs(arguments, **sent):
    given = {f"mcp-param-{name}": (value,) if isinstance(value, str) else value for name, value in sent.items()}
    return mismatch(read(TYPES), Raw(arguments), given)


@requirement("TX-HTTP-2")
@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        (b"{}", {}),
        (b"{}", {"unheard-of": "x"}),
        (b'{"region":null}', {}),
        (b'{"region":"eu west"}', {"region": "eu west"}),
        (b'{"region":"eu"}', {"region": "=?base64?ZXU=?="}),
        (b'{"region":"caf\\u00e9"}', {"region": "=?base64?Y2Fmw6k=?="}),
        (b'{"rows":42}', {"rows": "42"}),
        (b'{"rows":42}', {"rows": "42.0"}),
        (b'{"rows":4.2e1}', {"rows": "42"}),
        (b'{"dry":true}', {"dry": "true"}),
        (b'{"deep":{"name":"x"}}', {"name": "x"}),
        (b'{"rows":[1]}', {}),
    ],
)
def test_headers_may_say_what_the_arguments_say(arguments, sent):
    assert differs(arguments, **sent) is None


@requirement("TX-HTTP-2")
@pytest.mark.parametrize(
    ("arguments", "sent", "why"),
    [
        (b'{"region":"eu"}', {}, "mcp-param-region is missing"),
        (b'{"region":"eu"}', {"region": "us"}, "mcp-param-region does not equal the argument"),
        (b'{"region":"eu"}', {"region": "=?base64?dXM=?="}, "mcp-param-region does not equal the argument"),
        (b'{"region":"eu"}', {"region": ("eu", "eu")}, "mcp-param-region was sent more than once"),
        (b'{"region":"eu"}', {"region": "=?base64?ZXU?="}, "mcp-param-region holds invalid characters"),
        (b'{"region":"caf\\u00e9"}', {"region": "caf\u00e9"}, "mcp-param-region holds invalid characters"),
        (b'{"region":"a"}', {"region": "a\udce9"}, "mcp-param-region holds invalid characters"),
        (b"{}", {"region": "eu"}, "mcp-param-region repeats an argument that there is not"),
        (b'{"region":null}', {"region": "null"}, "mcp-param-region repeats an argument that there is not"),
        (b'{"region":"42.0"}', {"region": "42"}, "mcp-param-region does not equal the argument"),
        (b'{"rows":42}', {"rows": "43"}, "mcp-param-rows does not equal the argument"),
        (b'{"rows":1e999}', {"rows": "1e99999999999"}, "mcp-param-rows does not equal the argument"),
        (b'{"dry":true}', {"dry": "True"}, "mcp-param-dry does not equal the argument"),
        (b'{"deep":{"name":"x"},"name":"y"}', {"name": "y"}, "mcp-param-name does not equal the argument"),
    ],
)
def test_headers_that_say_something_else_are_found(arguments, sent, why):
    assert differs(arguments, **sent) == why


@thorough
@given(st.text(), st.text())
def test_what_a_client_writes_is_what_is_found_again(value, other):
    arguments = Raw(compact({"region": value}))
    said = headers("tools/call", {}, "2026-07-28", mirrored(read(TYPES), arguments))["Mcp-Param-Region"]
    given_ = {"mcp-param-region": (said,)}
    assert mismatch(read(TYPES), arguments, given_) is None
    wrong = mismatch(read(TYPES), Raw(compact({"region": other})), given_)
    assert (wrong is None) is (value == other)
