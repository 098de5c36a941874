"""`[auth]` and `public_url`: what is taken, and every problem with its line."""

import pytest

from gateway.config.findings import examine
from gateway.config.identity import Issuer, check_public_url
from gateway.config.load import load_config
from gateway.config.models import Auth, Config, Server
from tests.issuers import Signer, key_set
from tests.requirements import requirement

UPSTREAM = {"name": "a", "url": "http://h/mcp"}
ISSUER = {"issuer": "https://idp.example/", "jwks_url": "https://idp.example/jwks"}
SIGNER = Signer("ES256")
TEXT = """\
[server]
public_url = "https://gw.example"
listen = "0.0.0.0:8080"
[auth]
mode = "jwt"
[[auth.issuers]]
issuer = "https://idp.example/"
{source}
[[upstreams]]
name = "a"
url = "http://h/mcp"
"""


def messages(model, **values):
    return [(".".join(map(str, found.keys[0])), found.message) for found in examine(model, values)]


def issuer(**changes):
    given = {**ISSUER, **changes}
    return messages(Issuer, **{name: value for name, value in given.items() if value is not ...})


def test_every_key_of_an_issuer_has_its_documented_default():
    assert Issuer(**ISSUER).model_dump() == {
        **ISSUER,
        "audience": (),
        "public_key_file": None,
        "jwks_file": None,
        "algorithms": ("RS256", "ES256", "EdDSA"),
        "subject_claim": "sub",
        "tenant_claim": "tid",
        "leeway_s": 30,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "urn:example:idp"},
        {"issuer": "https://idp.example/tenants/1"},
        {"audience": ["https://gw.example/mcp", "api"]},
        {"algorithms": ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]},
        {"tenant_claim": "https://idp.example/tenant", "subject_claim": "client.id"},
        {"leeway_s": 0},
        {"leeway_s": 300},
        {"jwks_url": "http://127.0.0.1:1/jwks?x=1"},
        {"jwks_url": "http://localhost/jwks"},
        {"jwks_url": ..., "jwks_file": "keys.json"},
        {"jwks_url": ..., "public_key_file": "key.pem"},
    ],
)
def test_an_issuer_is_taken(changes):
    assert issuer(**changes) == []


WORD = "must not be empty and must hold no white space"
SCHEME = "must begin with https://; http:// is for loopback addresses only"
ONE = "exactly one of public_key_file, jwks_file, jwks_url must be given"
NAMES = "'RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'ES512' or 'EdDSA'"


@requirement("OWN-CONFIG", "OWN-TOKEN")
@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"issuer": ...}, "issuer", "is missing"),
        ({"issuer": ""}, "issuer", WORD),
        ({"issuer": "https://idp.example/ "}, "issuer", WORD),
        ({"issuer": "a\nb"}, "issuer", WORD),
        ({"issuer": 5}, "issuer", "must be a valid string"),
        ({"audience": [""]}, "audience.0", WORD),
        ({"audience": "api"}, "audience", "must be an array"),
        ({"algorithms": ["HS256"]}, "algorithms.0", f"must be {NAMES}"),
        ({"algorithms": ["ES256", "none"]}, "algorithms.1", f"must be {NAMES}"),
        ({"algorithms": ["ES256K"]}, "algorithms.0", f"must be {NAMES}"),
        ({"algorithms": []}, "algorithms", "must have at least one entry"),
        ({"subject_claim": ""}, "subject_claim", WORD),
        ({"tenant_claim": ""}, "tenant_claim", WORD),
        ({"leeway_s": -1}, "leeway_s", "must be greater than or equal to 0"),
        ({"leeway_s": 301}, "leeway_s", "must be less than or equal to 300"),
        ({"jwks_url": "http://idp.example/jwks"}, "jwks_url", SCHEME),
        ({"jwks_url": "https://"}, "jwks_url", "must begin with https://HOST"),
        ({"jwks_url": "ftp://idp.example"}, "jwks_url", "must begin with https://HOST"),
        ({"jwks_url": "https://[::1"}, "jwks_url", "must begin with https://HOST"),
        ({"jwks_url": "https://h:x/"}, "jwks_url", "must begin with https://HOST"),
        ({"jwks_url": "https://h/ x"}, "jwks_url", "must begin with https://HOST"),
        ({"jwks_url": "https://u:SECRET@h"}, "jwks_url", "holds a user or a password: keys of an issuer are public"),
        ({"jwks_url": ...}, "public_key_file", ONE),
        ({"jwks_file": "a"}, "jwks_url", ONE),
        ({"public_key_file": "a"}, "jwks_url", ONE),
        ({"jwks_uri": "https://h"}, "jwks_uri", 'unknown key; did you mean "jwks_url"?'),
    ],
)
def test_an_issuer_is_refused_with_the_key_that_is_wrong(changes, key, message):
    assert issuer(**changes) == [(key, message)]


@requirement("OWN-CONFIG")
def test_an_issuer_has_one_entry():
    assert messages(Auth, issuers=[ISSUER, {**ISSUER, "issuer": "b"}, {**ISSUER, "jwks_url": "https://x"}]) == [
        ("issuers.2.issuer", "is used twice: an issuer has one entry")
    ]


@pytest.mark.parametrize(
    "url",
    [
        None,
        "https://gw.example",
        "https://gw.example:8443",
        "https://10.0.0.1",
        "https://[2001:db8::1]:8443",
        "https://xn--bcher-kva.example",
        "http://127.0.0.1:8080",
        "http://localhost:80800"[:-1],
        "http://[::1]:1",
    ],
)
def test_a_public_url_is_an_origin(url):
    assert check_public_url(url) == url
    assert Server(public_url=url).origin == (url or "http://127.0.0.1:8080")


FORM = "must be https://HOST or https://HOST:PORT in lower case, with nothing behind it"


@requirement("OWN-CONFIG", "OWN-RESOURCE")
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", FORM),
        ("gw.example", FORM),
        ("https://", FORM),
        ("https://gw.example/", FORM),
        ("https://gw.example/team", FORM),
        ("https://gw.example?x", FORM),
        ("https://gw.example#x", FORM),
        ("https://gw.example ", FORM),
        ("https://gw.example\n", FORM),
        ("https://u@gw.example", FORM),
        ("https://GW.example", FORM),
        ("HTTPS://gw.example", FORM),
        ("https://gw.example:", FORM),
        ("https://gw.example:0", FORM),
        ("https://gw.example:65536", FORM),
        ('https://gw.example"', FORM),
        ("https://-gw.example", FORM),
        ("https://bücher.example", FORM),
        ("ftp://gw.example", FORM),
        ("http://gw.example", SCHEME),
        ("http://10.0.0.1", SCHEME),
        ("https://gw.example:443", "must not name the port that its scheme has anyway"),
        ("http://localhost:80", "must not name the port that its scheme has anyway"),
    ],
)
def test_anything_else_is_no_public_url(url, message):
    assert messages(Server, public_url=url) == [("public_url", message)]


@pytest.mark.parametrize(
    ("listen", "origin"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("localhost:1", "http://localhost:1"),
        ("[::1]:80", "http://[::1]:80"),
        ("::1:80", "http://[::1]:80"),
    ],
)
def test_without_a_public_url_the_listener_names_the_endpoints(listen, origin):
    assert Server(listen=listen).origin == origin


PUBLIC = "needs server.public_url beside it: tokens are made for the address that clients use"


@requirement("OWN-CONFIG")
@pytest.mark.parametrize(
    ("server", "auth", "problems"),
    [
        ({}, {"mode": "jwt", "issuers": [ISSUER]}, []),
        ({"listen": "0.0.0.0:1", "public_url": "https://h"}, {"mode": "jwt", "issuers": [ISSUER]}, []),
        ({"listen": "127.0.0.1:0", "public_url": "https://h"}, {"mode": "jwt", "issuers": [ISSUER]}, []),
        ({"public_url": "https://h"}, {}, []),
        ({"listen": "0.0.0.0:1"}, {"mode": "jwt", "issuers": [ISSUER]}, [("server.public_url", PUBLIC)]),
        ({"listen": "127.0.0.1:0"}, {"mode": "jwt", "issuers": [ISSUER]}, [("server.public_url", PUBLIC)]),
        (
            {},
            {"mode": "jwt"},
            [("auth.issuers", 'must have at least one entry while auth.mode is "jwt": [[auth.issuers]]')],
        ),
        ({}, {"issuers": [ISSUER]}, [("auth.issuers", 'has no effect while auth.mode is "none"')]),
        ({}, {"mode": "jwt", "issuers": [{**ISSUER, "issuer": ""}]}, [("auth.issuers.0.issuer", WORD)]),
    ],
)
def test_mode_issuers_and_addresses_fit_together(server, auth, problems):
    assert messages(Config, upstreams=[UPSTREAM], server=server, auth=auth) == problems


@requirement("OWN-CONFIG")
def test_problems_of_issuers_are_told_with_their_lines(load):
    text = """\
[server]
listen = "0.0.0.0:80"
[auth]
mode = "jwt"
[[auth.issuers]]
issuer = "a"
[[auth.issuers]]
issuer = "a"
jwks_url = "https://h"
jwks_file = "absent.json"
algorithms = [
  "HS256",
]
[[upstreams]]
name = "a"
url = "http://h/mcp"
"""
    assert load(text) == [
        f"config.toml:2: server.listen: {PUBLIC}",
        f"config.toml:5: auth.issuers.0.public_key_file: {ONE}",
        "config.toml:10: auth.issuers.1.jwks_file: cannot be read: No such file or directory",
        f"config.toml:12: auth.issuers.1.algorithms.0: must be {NAMES}",
    ]


@pytest.mark.parametrize("setting", ["public_key_file", "jwks_file"])
def test_a_key_file_beside_the_configuration_is_taken(load, folder, setting):
    content = SIGNER.pem if setting == "public_key_file" else key_set(SIGNER).encode()
    (folder / "keys").mkdir()
    (folder / "keys" / "k").write_bytes(content)
    loaded = load(TEXT.format(source=f'{setting} = "keys/k"'))
    assert getattr(loaded.config.auth.issuers[0], setting) == "keys/k"


@requirement("OWN-CONFIG", "OWN-QUIET")
@pytest.mark.parametrize(
    ("source", "content", "problem"),
    [
        ('jwks_file = "k"', None, "8: auth.issuers.0.jwks_file: cannot be read: No such file or directory"),
        ('jwks_file = "."', None, "8: auth.issuers.0.jwks_file: cannot be read: Is a directory"),
        ('jwks_file = "a\\u0000b"', None, "8: auth.issuers.0.jwks_file: cannot be read: embedded null byte"),
        ('jwks_file = ""', None, "8: auth.issuers.0.jwks_file: must have at least 1 character"),
        ('jwks_file = "k"', b"SECRET-123", "8: auth.issuers.0.jwks_file: is no JSON"),
        ('jwks_file = "k"', b"{}", "8: auth.issuers.0.jwks_file: is no JSON Web Key Set"),
        (
            'jwks_file = "k"',
            b'{"keys":[]}',
            "8: auth.issuers.0.jwks_file: holds no key for RS256, ES256, EdDSA",
        ),
        (
            'public_key_file = "k"',
            b"SECRET-123",
            "8: auth.issuers.0.public_key_file: holds no public key in PEM form",
        ),
        (
            'public_key_file = "k"\nalgorithms = ["RS256"]',
            SIGNER.pem,
            "8: auth.issuers.0.public_key_file: holds no key for RS256",
        ),
    ],
)
def test_a_key_file_that_cannot_be_used_is_a_problem_of_the_key_that_names_it(load, folder, source, content, problem):
    if content is not None:
        (folder / "k").write_bytes(content)
    assert load(TEXT.format(source=source)) == [f"config.toml:{problem}"]


def test_whoever_knows_no_keys_finds_files_that_are_not_there_all_the_same(folder):
    (folder / "config.toml").write_text(TEXT.format(source='jwks_file = "k"'))
    (problem,) = load_config(folder / "config.toml")
    assert problem.message == "cannot be read: No such file or directory"
    (folder / "k").write_text("anything")
    assert load_config(folder / "config.toml").config.auth.mode == "jwt"
