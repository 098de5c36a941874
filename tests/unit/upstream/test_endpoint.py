"""Where messages are posted: what a server may say, and what would lead credentials elsewhere."""

import pytest

from gateway.upstream.endpoint import resolved
from tests.requirements import requirement

URL = "http://127.0.0.1:9000/mount/sse"


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ("/messages?session=1", "http://127.0.0.1:9000/messages?session=1"),
        ("messages/?session=a%2Fb", "http://127.0.0.1:9000/mount/messages/?session=a%2Fb"),
        ("?session=1", "http://127.0.0.1:9000/mount/sse?session=1"),
        ("http://127.0.0.1:9000/m#x", "http://127.0.0.1:9000/m"),
        ("HTTP://127.0.0.1:9000", "http://127.0.0.1:9000/"),
        ("//127.0.0.1:9000/m", "http://127.0.0.1:9000/m"),
    ],
)
def test_an_endpoint_of_the_same_origin_is_taken(said, url):
    assert resolved(URL, said.encode()) == url


@requirement("OWN-QUIET")
@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"http://127.0.0.1:9001/m",
        b"https://127.0.0.1:9000/m",
        b"http://localhost:9000/m",
        b"//evil.example/m",
        b"http://127.0.0.1:9000@evil.example/m",
        b"http://user@127.0.0.1:9000/m",
        b"http://127.0.0.1:9000\\@evil.example/m",
        b"\\\\evil.example/m",
        b"http://127.0.0.1:port/m",
        b"http://[::1/m",
        b"file:///etc/passwd",
        b"data:,x",
        b"/m\r\nX: y",
        b"/m x",
        b"/m\xff",
    ],
)
def test_any_other_one_is_refused(said):
    assert resolved(URL, said) is None


@pytest.mark.parametrize(
    ("here", "said", "url"),
    [
        ("https://Example.com/sse", "https://example.com:443/m", "https://Example.com/m"),
        ("http://example.com:80/sse", "http://example.com/m", "http://example.com:80/m"),
        ("http://[::1]:9000/sse", "http://[::1]:9000/m", "http://[::1]:9000/m"),
    ],
)
def test_the_origin_stays_as_the_operator_wrote_it(here, said, url):
    assert resolved(here, said.encode()) == url
