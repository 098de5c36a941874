"""What each era sees of a tool list."""

import json

import pytest

from gateway.wire import tools
from gateway.wire.render import SERVER_INFO
from tests.requirements import requirement
from tests.unit.wire.samples import SERVER, compact

SUPPORT = {"slow": "required", "fast": "forbidden", "": "nameless"}
META = b'"_meta":' + compact({SERVER: SERVER_INFO})
CACHE = b'"ttlMs":0,"cacheScope":"private"'
SLOW = (
    b'{"name":"slow","inputSchema":{ "type" : "object" },"annotations":{"readOnlyHint":true},"icons":[ ],"x":1e400,'
    b'"outputSchema":{"type":"object"},"_meta":{"a":1.0}}'
)


def support(name):
    return SUPPORT.get(name, "optional")


def shown(tool, version="2025-11-25"):
    written = tools.legacy_list(b'{"tools":[' + tool + b"]}", version, support)
    assert written.startswith(b'{"tools":[')
    return written[len(b'{"tools":[') : -len(b"]}")]


@requirement("T25-CAP-4", "OWN-BYTES")
def test_a_tool_gets_the_support_of_the_policy_and_keeps_all_else():
    assert shown(SLOW) == SLOW[:-1] + b',"execution":{"taskSupport":"required"}}'


@requirement("BR-2")
@pytest.mark.parametrize(
    ("said", "shown_"),
    [
        (b'"resultType":"complete","ttlMs":1,"cacheScope":"public","x":1.0,', b'"x":1.0,'),
        (b'"ttlMs":1,"cacheScope":"public",', b'"ttlMs":1,"cacheScope":"public",'),
    ],
)
def test_what_a_modern_upstream_says_of_its_list_stays_behind(said, shown_):
    written = tools.legacy_list(b"{" + said + b'"tools":[]}', "2025-11-25", support)
    assert written == b"{" + shown_ + b'"tools":[]}'
    assert tools.modern_list(b"{" + said + b'"tools":[]}').count(b"resultType") == 1
    assert tools.modern_list(b"{" + said + b'"tools":[]}').count(b"ttlMs") == 1


@requirement("T25-CAP-4")
@pytest.mark.parametrize(
    ("name", "word"),
    [
        (b'"slow"', b"required"),
        (b'"fast"', b"forbidden"),
        (b'"other"', b"optional"),
        (b'"sl\\u006fw"', b"required"),
        (b"5", b"nameless"),
        (b'""', b"nameless"),
    ],
)
def test_each_tool_is_asked_for_by_its_name(name, word):
    assert shown(b'{"name":' + name + b"}") == b'{"name":' + name + b',"execution":{"taskSupport":"' + word + b'"}}'


def test_a_tool_without_a_name_is_asked_for_all_the_same():
    assert shown(b'{"title":"x"}') == b'{"title":"x","execution":{"taskSupport":"nameless"}}'


@requirement("T25-CAP-6")
@pytest.mark.parametrize(
    ("execution", "written"),
    [
        (b'{"taskSupport":"required"}', b'{"taskSupport":"forbidden"}'),
        (b'{"taskSupport":"optional","other":1.0}', b'{"taskSupport":"forbidden","other":1.0}'),
        (b'{"other":[ ]}', b'{"other":[ ],"taskSupport":"forbidden"}'),
        (b"{}", b'{"taskSupport":"forbidden"}'),
        (b"null", b'{"taskSupport":"forbidden"}'),
        (b'"required"', b'{"taskSupport":"forbidden"}'),
    ],
)
def test_the_upstreams_own_support_is_never_shown(execution, written):
    tool = b'{"execution":' + execution + b',"name":"fast"}'
    assert shown(tool) == b'{"execution":' + written + b',"name":"fast"}'


@requirement("T25-CAP-4", "T25-CAP-6")
@pytest.mark.parametrize("execution", [b"", b'"execution":{"taskSupport":"required","other":1},', b'"execution":null,'])
def test_a_tool_without_an_answer_of_the_policy_is_shown_without(execution):
    body = b'{"tools":[{' + execution + b'"name":"quiet","n":1.0},{"name":"slow"}]}'
    written = tools.legacy_list(body, "2025-11-25", {"slow": "optional"}.get)
    shown_support = b'"execution":{"taskSupport":"optional"}'
    assert written == b'{"tools":[{"name":"quiet","n":1.0},{"name":"slow",' + shown_support + b"}]}"


@requirement("T25-CAP-3", "T25-CAP-6")
@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26", "2024-11-05", ""])
def test_older_revisions_see_nothing_of_tasks(version):
    assert (
        shown(b'{"name":"slow","execution":{"taskSupport":"required"},"n":1.0}', version) == b'{"name":"slow","n":1.0}'
    )
    assert shown(SLOW, version) == SLOW


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
@pytest.mark.parametrize("tool", [b"null", b"[ ]", b'"slow"', b"7"])
def test_what_is_no_tool_definition_passes(version, tool):
    assert shown(tool, version) == tool


@requirement("T25-CAP-4", "OWN-BYTES")
def test_order_cursor_and_everything_else_of_a_list_stay():
    body = b'{"a":1.0,"tools":[{"name":"z"},{"name":"a"}],"nextCursor":"\\u00e9","_meta":{ }}'
    written = tools.legacy_list(body, "2025-06-18", support)
    assert written == body


@pytest.mark.parametrize("body", [b"{}", b'{"tools":null}', b'{"tools":{}}', b"[]"])
def test_a_list_without_tools_is_empty(body):
    assert tools.legacy_list(body, "2025-11-25", support) == b'{"tools":[]}'
    written = {"resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "private"}
    assert json.loads(tools.modern_list(body)) == {**written, "_meta": {SERVER: SERVER_INFO}}


@requirement("TX-HTTP-5", "OWN-BYTES")
def test_a_modern_list_is_complete_private_and_not_to_be_kept():
    body = b'{"tools":[' + SLOW + b',{"name":"b"}],"nextCursor":"c"}'
    head = b'{"resultType":"complete","tools":[' + SLOW + b',{"name":"b"}],"nextCursor":"c",'
    assert tools.modern_list(body) == head + CACHE + b"," + META + b"}"


@requirement("TX-HTTP-5")
def test_what_the_upstream_says_about_caches_does_not_count():
    body = b'{"ttlMs":60000,"cacheScope":"public","tools":[]}'
    assert tools.modern_list(body) == b'{"resultType":"complete",' + CACHE + b',"tools":[],' + META + b"}"


@requirement("T25-CAP-6")
def test_a_modern_list_says_nothing_about_tasks():
    body = b'{"tools":[{"name":"slow","execution":{"taskSupport":"required"}},null]}'
    expected = b'{"resultType":"complete","tools":[{"name":"slow"},null],' + CACHE + b"," + META + b"}"
    assert tools.modern_list(body) == expected
