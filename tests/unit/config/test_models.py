"""The shape of config.toml: defaults, names, addresses, and where secrets may stand."""

import pytest
from pydantic import BaseModel, ValidationError

from gateway.config import models
from gateway.config.findings import examine
from gateway.config.models import (
    Admin,
    Auth,
    Config,
    Runner,
    Server,
    Sessions,
    Store,
    Upstream,
    check_listen,
    check_reference,
    is_loopback,
    is_store_url,
    split_listen,
)
from gateway.policy.shape import Finding
from tests.requirements import requirement

UPSTREAM = {"name": "a", "url": "http://h/mcp"}


def messages(model: type[BaseModel], **values: object) -> list[tuple[str, str]]:
    return [(".".join(map(str, found.keys[0])), found.message) for found in examine(model, values)]


def test_every_key_has_its_documented_default():
    assert Config.model_validate({"upstreams": [UPSTREAM]}).model_dump() == {
        "server": {
            "listen": "127.0.0.1:8080",
            "public_url": None,
            "allowed_origins": (),
            "workers": 1,
            "max_body_bytes": 4194304,
            "drain_deadline_s": 60,
        },
        "admin": {"listen": "127.0.0.1:8081", "token": None},
        "store": {
            "url": "embedded:./data",
            "prefix": "mtg",
            "shards": 1,
            "sent_durability": "local",
            "timeout_s": 2,
        },
        "secrets": {"keys": (), "encrypt_at_rest": False},
        "runner": {"concurrency": 200, "lease_s": 15, "takeover_grace_s": 30, "cancel_grace_s": 5},
        "sessions": {"idle_ttl_s": 3600, "max_per_principal": 50},
        "auth": {"mode": "none", "issuers": ()},
        "audit": {"file": ""},
        "upstreams": (
            {
                "name": "a",
                "transport": "streamable-http",
                "era": "auto",
                "url": "http://h/mcp",
                "headers": {},
                "command": (),
                "cwd": None,
                "env": {},
                "session_scope": "principal",
                "max_sessions": 100,
                "session_idle_s": 600,
                "connect_timeout_s": 5,
                "allowed_hosts": (),
                "policy": None,
            },
        ),
    }


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("localhost:0", "localhost", 0),
        ("[::1]:65535", "::1", 65535),
        ("::1:80", "::1", 80),
        ("example.com:", "example.com", -1),
        ("example.com:http", "example.com", -1),
        ("example.com:-1", "example.com", -1),
        ("8080", "", 8080),
    ],
)
def test_an_address_is_split_at_its_last_colon(listen, host, port):
    assert split_listen(listen) == (host, port)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:65535", "[::]:80", "host.example:1"])
def test_host_and_port_make_an_address(listen):
    assert check_listen(listen) == listen


@pytest.mark.parametrize(
    "listen", ["", ":80", "80", "localhost", "localhost:", "localhost:65536", "localhost:x", "[]:1"]
)
def test_anything_else_is_no_address(listen):
    with pytest.raises(ValueError, match=r"^must be HOST:PORT$"):
        check_listen(listen)


@pytest.mark.parametrize(
    ("listen", "loopback"),
    [
        ("127.0.0.1:80", True),
        ("127.8.9.10:80", True),
        ("[::1]:80", True),
        ("localhost:80", True),
        ("0.0.0.0:80", False),
        ("[::]:80", False),
        ("10.0.0.1:80", False),
        ("128.0.0.1:80", False),
        ("localhost.example.com:80", False),
        ("127.0.0.1.example.com:80", False),
    ],
)
def test_a_loopback_address_is_one_that_only_this_machine_reaches(listen, loopback):
    assert is_loopback(listen) is loopback


@pytest.mark.parametrize("reference", [None, "env:NAME", "file:/run/secrets/x", "file:x"])
def test_a_reference_names_a_variable_or_a_file(reference):
    assert check_reference(reference) == reference


@pytest.mark.parametrize("reference", ["", "SECRET-123", "env:", "file:", "ENV:NAME", " env:NAME", "vault:x"])
def test_a_secret_itself_is_no_reference(reference):
    with pytest.raises(ValueError, match=r"^must be env:NAME or file:PATH$"):
        check_reference(reference)


@pytest.mark.parametrize("url", ["embedded:x", "redis://h", "rediss://h:1/0", "unix:///run/s"])
def test_a_store_is_found_by_its_url(url):
    assert is_store_url(url)
    assert Store(url=url).url == url


@pytest.mark.parametrize("url", ["", "embedded:", "redis:h", "http://h", "env:NAME", "xredis://h"])
def test_a_store_is_not_found_by_anything_else(url):
    assert not is_store_url(url)


@pytest.mark.parametrize("url", ["env:NAME", "file:url", "redis://user@h", "redis://h:6379/0?db=1"])
def test_the_url_of_a_store_may_be_a_reference_and_hold_all_but_a_password(url):
    assert Store(url=url).url == url


@requirement("OWN-QUIET")
@pytest.mark.parametrize(
    "url",
    [
        "redis://:SECRET-123@h",
        "rediss://user:SECRET-123@h:1/0",
        "redis://:SECRET/123@h",
        "unix:///s?password=SECRET-123",
        "redis://h?db=1&PASSWORD=x",
    ],
)
def test_the_url_of_a_store_holds_no_password(url):
    assert messages(Store, url=url) == [("url", "holds a password: give the whole URL as env:NAME or file:PATH")]


@pytest.mark.parametrize("url", ["", "embedded:", "env:", "http://h"])
def test_another_url_is_no_store(url):
    expected = "must be embedded:DIRECTORY, redis://, rediss://, unix://, or a reference to one"
    assert messages(Store, url=url) == [("url", expected)]


def test_a_prefix_is_short_and_plain():
    assert Store(prefix="aZ09_-" + "x" * 26).prefix == "aZ09_-" + "x" * 26
    expected = [("prefix", 'must be 1 to 32 letters, digits, "_" and "-"')]
    for prefix in ("", "x" * 33, "a b", "a:b", "{a}", "a\n"):
        assert messages(Store, prefix=prefix) == expected


@pytest.mark.parametrize("name", ["a", "reports", "a-1", "a" * 40])
def test_the_name_of_an_upstream_fits_into_a_path(name):
    assert Upstream(name=name, url="http://h").name == name


@requirement("OWN-CONFIG")
@pytest.mark.parametrize("name", ["", "A", "1a", "-a", "a_b", "a/b", "a" * 41, "a\n", "mcp", "artifacts", "healthz"])
def test_a_reserved_or_odd_name_of_an_upstream_is_refused(name):
    expected = "must match [a-z][a-z0-9-]{0,39} and be none of artifacts, healthz, mcp"
    assert messages(Upstream, name=name, url="http://h") == [("name", expected)]


@pytest.mark.parametrize("url", ["http://h", "https://h:1/mcp?x=@y", "http://[::1]:9000/a@b"])
def test_an_upstream_is_reached_over_http(url):
    assert Upstream(name="a", url=url).url == url


@pytest.mark.parametrize("url", ["", "h:80", "ftp://h", "http://", "http:///mcp", "http:// h", "HTTP//h"])
def test_an_upstream_is_reached_over_nothing_else(url):
    assert messages(Upstream, name="a", url=url) == [("url", "must begin with http://HOST or https://HOST")]


@requirement("OWN-QUIET")
@pytest.mark.parametrize("url", ["http://u:SECRET-123@h/mcp", "https://SECRET-123@h"])
def test_the_url_of_an_upstream_holds_no_user_and_no_password(url):
    expected = "holds a user or a password: give them in headers, as env:NAME or file:PATH"
    assert messages(Upstream, name="a", url=url) == [("url", expected)]


@requirement("OWN-QUIET")
@pytest.mark.parametrize(
    "name", ["Authorization", "proxy-authorization", "Cookie", "X-Auth-Token", "X-SECRET", "X-Api-Key", "apikey"]
)
def test_a_header_that_looks_like_a_secret_is_given_by_reference(name):
    assert messages(Upstream, **UPSTREAM, headers={name: "SECRET-123"}) == [
        (f"headers.{name}", "looks like a secret: give it as env:NAME or file:PATH")
    ]
    for reference in ("env:NAME", "file:PATH"):
        assert Upstream(**UPSTREAM, headers={name: reference}).headers == {name: reference}


def test_another_header_may_be_written_down():
    assert Upstream(**UPSTREAM, headers={"X-Team": "blue"}).headers == {"X-Team": "blue"}


@requirement("OWN-CONFIG")
def test_every_wrong_header_is_found_at_once():
    headers = {"Authorization": "SECRET-123", "X-Team": "blue", "X-Number": 5, "Cookie": "SECRET-123"}
    assert messages(Upstream, **UPSTREAM, headers=headers) == [
        ("headers.Authorization", "looks like a secret: give it as env:NAME or file:PATH"),
        ("headers.X-Number", "must be a valid string"),
        ("headers.Cookie", "looks like a secret: give it as env:NAME or file:PATH"),
    ]


def test_headers_are_a_table():
    assert messages(Upstream, **UPSTREAM, headers=["SECRET-123"]) == [("headers", "must be a table")]


@pytest.mark.parametrize(
    ("model", "key", "least", "refusal", "message"),
    [
        (Server, "max_body_bytes", 1024, 1023, "must be greater than or equal to 1024"),
        (Server, "drain_deadline_s", 0, -0.1, "must be greater than or equal to 0"),
        (Store, "shards", 1, 0, "must be greater than or equal to 1"),
        (Store, "timeout_s", 0.1, 0, "must be greater than 0"),
        (Runner, "concurrency", 1, 0, "must be greater than or equal to 1"),
        (Runner, "lease_s", 0.1, 0, "must be greater than 0"),
        (Runner, "takeover_grace_s", 0, -1, "must be greater than or equal to 0"),
        (Runner, "cancel_grace_s", 0, -1, "must be greater than or equal to 0"),
        (Upstream, "max_sessions", 1, 0, "must be greater than or equal to 1"),
        (Upstream, "session_idle_s", 0.1, 0, "must be greater than 0"),
        (Upstream, "connect_timeout_s", 0.1, 0, "must be greater than 0"),
        (Sessions, "idle_ttl_s", 0.1, 0, "must be greater than 0"),
        (Sessions, "max_per_principal", 1, 0, "must be greater than or equal to 1"),
    ],
)
def test_a_number_is_taken_down_to_its_least_value_and_no_further(model, key, least, refusal, message):
    filled = UPSTREAM if model is Upstream else {}
    assert getattr(model.model_validate({key: least, **filled}), key) == least
    assert messages(model, **{key: refusal}, **filled) == [(key, message)]


@pytest.mark.parametrize(
    ("model", "key", "words"),
    [
        (Server, "workers", ["auto"]),
        (Store, "sent_durability", ["local", "fsync", "replica"]),
        (Auth, "mode", ["none", "jwt"]),
        (Upstream, "transport", ["streamable-http", "sse", "auto"]),
        (Upstream, "era", ["auto", "legacy", "modern"]),
        (Upstream, "session_scope", ["principal", "tenant", "shared"]),
    ],
)
def test_a_word_is_one_of_those_that_are_documented(model, key, words):
    filled = UPSTREAM if model is Upstream else {}
    assert [getattr(model.model_validate({key: word, **filled}), key) for word in words] == words
    assert [name for name, _ in messages(model, **{key: "other"}, **filled)] == [key]


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_duration_is_finite(value):
    assert messages(Runner, lease_s=value) == [("lease_s", "must be a finite number")]


@pytest.mark.parametrize(
    ("model", "key", "value", "message"),
    [
        (Server, "listen", 8080, "must be a valid string"),
        (Server, "max_body_bytes", "4194304", "must be a valid integer"),
        (Server, "max_body_bytes", 4096.0, "must be a valid integer"),
        (Server, "drain_deadline_s", True, "must be a valid number"),
        (Server, "allowed_origins", "https://a", "must be an array"),
        (Server, "workers", "many", "must be a valid integer, or must be 'auto'"),
        (Server, "workers", {"a": 1}, "must be a valid integer, or must be 'auto'"),
        (Admin, "token", "SECRET-123", "must be env:NAME or file:PATH"),
        (Store, "sent_durability", "disk", "must be 'local', 'fsync' or 'replica'"),
        (Config, "server", "SECRET-123", "must be a table"),
        (Config, "server", [1], "must be a table"),
    ],
)
def test_a_wrong_type_is_refused_in_words_of_the_file(model, key, value, message):
    filled = {"upstreams": [UPSTREAM]} if model is Config else {}
    assert messages(model, **{key: value, **filled}) == [(key, message)]


@requirement("OWN-CONFIG")
def test_a_gateway_serves_at_least_one_upstream():
    expected = [("upstreams", "must have at least one entry: [[upstreams]]")]
    assert messages(Config) == expected
    assert messages(Config, upstreams=[]) == expected
    assert messages(Config, upstreams={}) == [("upstreams", "must be an array")]
    assert messages(Config, upstreams=["SECRET-123"]) == [("upstreams.0", "must be a table")]


@requirement("OWN-CONFIG")
def test_without_authentication_only_this_machine_is_served():
    message = 'must be a loopback address, such as 127.0.0.1:8080, while auth.mode is "none"'
    assert examine(Config, {"upstreams": [UPSTREAM], "server": {"listen": "0.0.0.0:80"}}) == [
        Finding((("server", "listen"), ("auth", "mode")), message)
    ]
    public = {"listen": "0.0.0.0:80", "public_url": "https://gw.example"}
    issuers = [{"issuer": "https://idp.example", "jwks_url": "https://idp.example/jwks"}]
    assert messages(Config, upstreams=[UPSTREAM], server=public, auth={"mode": "jwt", "issuers": issuers}) == []


@requirement("OWN-CONFIG")
def test_the_admin_listener_needs_a_token_off_this_machine():
    message = "must be a loopback address, such as 127.0.0.1:8081, while there is no admin.token"
    assert examine(Config, {"upstreams": [UPSTREAM], "admin": {"listen": "[::]:81"}}) == [
        Finding((("admin", "listen"), ("admin", "token")), message)
    ]
    assert messages(Config, upstreams=[UPSTREAM], admin={"listen": "[::]:81", "token": "env:T"}) == []


@requirement("OWN-CONFIG")
def test_what_a_first_problem_hides_is_found_with_it():
    values = {
        "server": {"listen": "0.0.0.0:80", "lisen": 1},
        "admin": {"listen": "0.0.0.0:81", "token": 5},
        "upstreams": [{"name": "a"}],
    }
    assert messages(Config, **values) == [
        ("server.lisen", 'unknown key; did you mean "listen"?'),
        ("admin.token", "must be a valid string"),
        ("upstreams.0.url", "is missing"),
        ("server.listen", 'must be a loopback address, such as 127.0.0.1:8080, while auth.mode is "none"'),
    ]


def test_a_contradiction_raises_for_whoever_builds_a_configuration_without_the_loader():
    with pytest.raises(ValidationError, match=r"server\.listen: must be a loopback address"):
        Config(server=Server(listen="0.0.0.0:80"), upstreams=(Upstream(**UPSTREAM),))


def test_every_key_without_effect_is_a_key():
    for name in models.NOT_BUILT:
        section, key = name.split(".")
        field = Config.model_fields[section]
        assert key in (Upstream if section == "upstreams" else type(field.default)).model_fields


def test_no_modern_server_is_spoken_to_over_the_oldest_transport():
    wrong = {**UPSTREAM, "transport": "sse", "era": "modern"}
    assert messages(Upstream, **wrong) == [("era", 'no server speaks it with transport = "sse"')]
    for transport, era in (("sse", "legacy"), ("sse", "auto"), ("auto", "modern")):
        assert messages(Upstream, **{**UPSTREAM, "transport": transport, "era": era}) == []
