"""Which Host and Origin headers are served."""

import pytest

from gateway.wire.hosts import Hosts, is_local
from tests.requirements import requirement

HOST_REFUSED = "Host not allowed: this listener serves loopback names only"
ORIGIN_REFUSED = "Origin not allowed: add it to server.allowed_origins"
LOOPBACK = Hosts(loopback=True)
PUBLIC = Hosts(loopback=False, origins=["https://App.example/", "http://other.example:8080"])


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "LOCALHOST", "127.0.0.1", "127.0.0.1:1", "127.9.9.9", "[::1]", "[::1]:8080"],
)
def test_a_loopback_listener_serves_loopback_names(host):
    assert LOOPBACK.refuses(host, None) is None


@requirement("OWN-LIMITS")
@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        ":8080",
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "0.0.0.0",
        "10.0.0.1",
        "[::2]",
        "[::1",
    ],
)
def test_a_loopback_listener_refuses_every_other_host(host):
    assert LOOPBACK.refuses(host, None) == HOST_REFUSED


@pytest.mark.parametrize("host", [None, "", "evil.example", "[::1"])
def test_elsewhere_the_ingress_decides_on_the_host(host):
    assert PUBLIC.refuses(host, None) is None


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:9", "HTTP://LOCALHOST"])
def test_a_loopback_listener_serves_pages_of_this_machine(origin):
    assert LOOPBACK.refuses("localhost", origin) is None


@requirement("OWN-LIMITS")
@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://localhost.evil.example", "null", "", "localhost", "file://", "http://[::1"],
)
def test_a_loopback_listener_refuses_pages_from_elsewhere(origin):
    assert LOOPBACK.refuses("localhost", origin) == ORIGIN_REFUSED


def test_the_host_is_looked_at_before_the_origin():
    assert LOOPBACK.refuses("evil.example", "https://evil.example") == HOST_REFUSED


@pytest.mark.parametrize("origin", ["https://app.example", "HTTPS://APP.EXAMPLE", "http://other.example:8080"])
def test_an_origin_on_the_list_is_served(origin):
    assert PUBLIC.refuses("gateway.example", origin) is None
    assert Hosts(loopback=True, origins=PUBLIC.origins).refuses("localhost", origin) is None


@pytest.mark.parametrize(
    "origin",
    [
        "http://app.example",
        "https://app.example:8443",
        "https://app.example.evil.example",
        "http://other.example",
        "http://localhost:3000",
        "null",
        "",
    ],
)
def test_only_the_very_origin_on_the_list_is_served(origin):
    assert PUBLIC.refuses("gateway.example", origin) == ORIGIN_REFUSED


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:9000/mcp", True),
        ("https://localhost/mcp", True),
        ("http://[::1]/mcp", True),
        ("https://tools.example/mcp", False),
        ("http://192.168.0.1/mcp", False),
        ("http://user:secret@localhost/", True),
        ("127.0.0.1", False),
        ("", False),
        ("http://[/", False),
    ],
)
def test_whether_a_url_is_of_this_machine(url, local):
    assert is_local(url) is local
