"""Endpoints as protected resources: documents and challenges from the configuration."""

import json

import pytest
from mcp.shared.auth import ProtectedResourceMetadata

from gateway.edge.resource import Resources
from gateway.wire import reply
from gateway.wire.errors import Era, Reject
from tests.requirements import requirement

OPEN = Resources("http://127.0.0.1:8080")
CLOSED = Resources("https://gw.example", ["https://idp.example/", "https://other.example"])
AT = 'Bearer resource_metadata="https://gw.example/.well-known/oauth-protected-resource'


def challenge(resources, reject, upstream=None, scopes=()):
    return resources.challenged(reply.refusal(b"1", reject, Era.MODERN), upstream, scopes).headers.get(
        "WWW-Authenticate"
    )


def test_an_endpoint_is_named_by_its_path():
    assert CLOSED.url(None) == "https://gw.example/mcp"
    assert CLOSED.url("reports") == "https://gw.example/reports/mcp"


@requirement("OWN-RESOURCE")
def test_a_document_is_what_the_sdk_understands():
    document = json.loads(CLOSED.document("reports", "reports", ["a", "b"]))
    assert document == {
        "resource": "https://gw.example/reports/mcp",
        "authorization_servers": ["https://idp.example/", "https://other.example"],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["a", "b"],
        "resource_name": "reports",
    }
    assert ProtectedResourceMetadata.model_validate(document).scopes_supported == ["a", "b"]
    assert "scopes_supported" not in json.loads(CLOSED.document("reports", "reports", []))


@requirement("OWN-RESOURCE")
@pytest.mark.parametrize(
    ("reject", "upstream", "scopes", "header"),
    [
        (Reject("unauthenticated", "m"), None, [], f'{AT}/mcp"'),
        (Reject("unauthenticated", "m"), "reports", ["a", "b"], f'{AT}/reports/mcp", scope="a b"'),
        (Reject("unauthenticated", "m", {"error": "invalid_token"}), None, [], f'{AT}/mcp", error="invalid_token"'),
        (
            Reject("forbidden", "m", {"requiredScopes": ["b", "c"]}),
            "reports",
            ["a"],
            f'{AT}/reports/mcp", error="insufficient_scope", scope="b c"',
        ),
        (Reject("forbidden", "m"), None, ["a"], f'{AT}/mcp", error="insufficient_scope"'),
        (Reject("not_found", "m", {"error": "invalid_token"}), None, ["a"], None),
        (Reject("origin", "m"), None, ["a"], None),
    ],
)
def test_a_refusal_for_want_of_a_token_or_a_scope_says_what_is_wanted(reject, upstream, scopes, header):
    assert challenge(CLOSED, reject, upstream, scopes) == header


def test_without_issuers_nothing_is_asked_for():
    assert challenge(OPEN, Reject("unauthenticated", "m")) is None
    assert challenge(OPEN, Reject("forbidden", "m", {"requiredScopes": ["a"]})) is None


def test_other_headers_stay():
    answer = reply.Reply(401, b"{}", {"X-A": "b"}, "unauthenticated")
    assert CLOSED.challenged(answer, None, []).headers.keys() == {"X-A", "WWW-Authenticate"}
