"""The one table of refusals, written down a second time from the specifications and from what was promised."""

import json

import pytest

from gateway.wire.errors import REASONS, Era, Reject, modern_error, needs_tasks, not_found, unsupported_version
from tests.requirements import requirement

SPECIFIED = {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022}
TABLE = [
    # reason, legacy code and HTTP status, modern code and HTTP status, retryable; None: not said in that era
    ("parse", -32700, 400, -32700, 400, False),
    ("invalid_request", -32600, 400, -32600, 400, False),
    ("too_large", -32600, 413, -32600, 413, False),
    ("headers", None, None, -32020, 400, False),
    ("meta", None, None, -32602, 400, False),
    ("version", -32600, 400, -32022, 400, False),
    ("capability", -32021, 200, -32021, 400, False),
    ("method", -32601, 200, -32601, 404, False),
    ("task_forbidden", -32601, 200, None, None, False),
    ("task_required", -32601, 200, -32021, 400, False),
    ("not_found", -32602, 200, -32602, 200, False),
    ("terminal", -32602, 200, None, None, False),
    ("arguments", -32602, 200, -32602, 200, False),
    ("session", -32600, 404, None, None, False),
    ("session_missing", -32600, 400, None, None, False),
    ("unauthenticated", -32600, 401, -32600, 401, False),
    ("forbidden", -32600, 403, -32600, 403, False),
    ("origin", -32600, 403, -32600, 403, False),
    ("quota", 42902, 200, 42902, 200, True),
    ("switch", 50302, 200, 50302, 200, True),
    ("store_away", 50303, 200, 50303, 200, True),
    ("key_conflict", 40901, 200, 40901, 200, False),
    ("key_settled", 40902, 200, 40902, 200, False),
    ("draining", 50306, 200, 50306, 200, True),
    ("outcome_unknown", 50305, 200, 50305, 200, False),
    ("deadline", 50401, 200, 50401, 200, False),
    ("expired_input", 50402, 200, 50402, 200, False),
    ("cancelled", 49901, 200, None, None, False),
    ("input_refused", 49902, 200, 49902, 200, False),
    ("upstream_down", 50201, 200, 50201, 200, True),
    ("upstream_bad", 50202, 200, 50202, 200, False),
    ("internal", -32603, 200, -32603, 200, False),
]
CELLS = [
    pytest.param(reason, era, code, http, retryable, id=f"{reason}-{era.value}")
    for reason, legacy, legacy_http, modern, modern_http, retryable in TABLE
    for era, code, http in ((Era.LEGACY, legacy, legacy_http), (Era.MODERN, modern, modern_http))
    if code is not None
]


@requirement("OWN-ERRORS")
@pytest.mark.parametrize(("reason", "era", "code", "http", "retryable"), CELLS)
def test_a_refusal_has_the_code_and_status_of_the_table(reason, era, code, http, retryable):
    reject = Reject(reason, "told in words", {"limit": 3})
    assert reject.code(era) == code
    assert reject.http(era) == http
    assert (
        reject.body(era)
        == json.dumps(
            {
                "code": code,
                "message": "told in words",
                "data": {"reason": reason, "retryable": retryable, "limit": 3},
            },
            separators=(",", ":"),
        ).encode()
    )


@requirement("OWN-ERRORS")
def test_there_is_no_reason_outside_the_table():
    assert {row[0] for row in TABLE} == REASONS


@requirement("TX-HTTP-6", "OWN-ERRORS")
@pytest.mark.parametrize("era", Era)
def test_no_code_of_our_own_lies_in_the_reserved_range(era):
    codes = {Reject(reason, "").code(era) for reason in REASONS}
    ours = codes - SPECIFIED
    assert ours == {
        *(40901, 40902, 42902, 49901, 49902, 50201, 50202, 50302, 50303, 50305, 50306, 50401, 50402),
    }
    assert [code for code in ours if -32768 <= code <= -32000] == []


def test_without_data_a_refusal_still_says_its_reason():
    written = b'{"code":-32601,"message":"m","data":{"reason":"method","retryable":false}}'
    assert Reject("method", "m").body(Era.LEGACY) == written


@requirement("TX-HTTP-4")
def test_an_unsupported_version_is_told_with_the_supported_ones():
    reject = unsupported_version("2031-01-01", ("2026-07-28", "2027-01-01"))
    assert (reject.code(Era.MODERN), reject.http(Era.MODERN)) == (-32022, 400)
    assert json.loads(reject.body(Era.MODERN)) == {
        "code": -32022,
        "message": "Unsupported protocol version",
        "data": {
            "reason": "version",
            "retryable": False,
            "supported": ["2026-07-28", "2027-01-01"],
            "requested": "2031-01-01",
        },
    }


@pytest.mark.parametrize("reason", ["capability", "task_required"])
def test_what_needs_tasks_names_the_extension_to_declare(reason):
    reject = needs_tasks(reason, "told")
    assert (reject.reason, reject.message) == (reason, "told")
    assert (reject.code(Era.MODERN), reject.http(Era.MODERN)) == (-32021, 400)
    assert reject.data == {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}


def test_an_expired_task_is_told_apart_from_an_unknown_one_in_words_only():
    unknown, expired = not_found(), not_found(expired=True)
    assert (unknown.message, expired.message) == ("Task not found", "Task has expired")
    for era in Era:
        assert unknown.code(era) == expired.code(era) == -32602
        assert unknown.http(era) == expired.http(era) == 200
    assert unknown.data == expired.data == {}


@requirement("TX-HTTP-6")
@pytest.mark.parametrize(
    ("upstream", "shown"),
    [
        (-32002, -32602),
        (-32042, -32603),
        (-32020, -32603),
        (-32021, -32603),
        (-32022, -32603),
        (-32099, -32603),
        (-32100, -32100),
        (-32019, -32019),
        (-32001, -32001),
        (-32003, -32003),
        (-32000, -32000),
        (-32601, -32601),
        (-32603, -32603),
        (-32700, -32700),
        (0, 0),
        (1, 1),
        (42902, 42902),
    ],
)
def test_a_modern_client_sees_no_code_that_its_revision_reserves(upstream, shown):
    assert modern_error(upstream) == shown
