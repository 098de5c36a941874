"""Talks to the admin listener of a running gateway: what the operator's commands share."""

import argparse
import getpass
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from gateway.cli.check import WRONG
from gateway.cli.printing import clean
from gateway.config.load import resolve
from gateway.config.models import check_reference, is_token

ADMIN: Final = "http://127.0.0.1:8081"
TOKEN: Final = "GATEWAY_ADMIN_TOKEN"  # noqa: S105  # the name of a variable
_HINT: Final = f"; set {TOKEN}, or give --token"
_FAILED: Final = 1
_TIMEOUT_S: Final = 30
_WITH_IDS: Final = ("tasks", "ledger")
_URL: Final = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?")
_NAME: Final = re.compile(r"-[\w-]{21}:[\w-]{16,64}|-[\w-]{31}")


class Failed(Exception):  # noqa: N818  # what is told to whoever runs the command
    """The gateway could not be asked, or said no."""


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would take the token somewhere else."""

    def redirect_request(self, *_: Any) -> None:
        """There is none."""


class Remote:
    """One gateway. Neither a proxy nor a redirect ever sees the token."""

    def __init__(self, admin: str, token: str | None) -> None:
        self._admin = admin.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._opener = build_opener(ProxyHandler({}), _NoRedirect())

    def get(self, path: str, query: Mapping[str, object] | None = None) -> dict[str, Any]:
        """What the gateway answers; what is None in the query is left out. Raises Failed."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return self._ask(Request(f"{self._admin}{path}?{urlencode(given)}"))  # noqa: S310  # checked by `_admin`

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """What the gateway answers. Raises Failed."""
        request = Request(f"{self._admin}{path}", json.dumps(body).encode())  # noqa: S310  # checked by `_admin`
        request.add_header("Content-Type", "application/json")
        return self._ask(request)

    def _ask(self, request: Request) -> dict[str, Any]:
        for name, value in self._headers.items():
            request.add_header(name, value)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as response:
                return _object(response.read())
        except HTTPError as error:
            with error:
                said = _object(error.read()).get("error")
            message = said.get("message") if isinstance(said, dict) else None
            hint = _HINT if error.code == HTTPStatus.UNAUTHORIZED else ""
            raise Failed(f"the gateway said {error.code}: {clean(str(message or error.reason))}{hint}") from error
        except (URLError, OSError, HTTPException, UnicodeError) as error:
            reason = getattr(error, "reason", None) or error
            raise Failed(f"{self._admin} does not answer: {reason}: is it the admin listener?") from error


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise Failed("the answer is no JSON: is it the admin listener?") from error
    if not isinstance(found, dict):
        raise Failed("the answer is no JSON object: is it the admin listener?")
    return found


def options(command: argparse.ArgumentParser, *, acts: bool = False) -> None:
    """The options that all of these commands have; with `acts` also who acts."""
    command.add_argument("--admin", metavar="URL", default=ADMIN, type=_admin, help=f"the admin listener ({ADMIN})")
    command.add_argument(
        "--token",
        metavar="REFERENCE",
        type=_token,
        help=f"its token, as env:NAME or file:PATH (env:{TOKEN} if that is set)",
    )
    command.add_argument("--json", action="store_true", help="print JSON, for programs")
    if acts:
        command.add_argument("--by", metavar="WHO", default=_who(), help="who does it, for the record (%(default)s)")


def run(arguments: argparse.Namespace, act: Callable[[Remote], int]) -> int:
    """Exit status 0 when it is done, 1 when the gateway could not be asked or said no, 2 for an unusable option."""
    reference = arguments.token or (f"env:{TOKEN}" if os.environ.get(TOKEN) else None)
    try:
        token = None if reference is None else resolve(reference, Path())
    except LookupError as error:
        print(f"--token: environment variable {error.args[0]} is not set or empty", file=sys.stderr)
        return WRONG
    except OSError as error:
        print(f"--token: cannot be read: {error.strerror}", file=sys.stderr)
        return WRONG
    if token is not None and not is_token(token):
        print("--token: what it refers to is no token: it must be visible ASCII characters", file=sys.stderr)
        return WRONG
    try:
        return act(Remote(arguments.admin, token))
    except UnicodeEncodeError:
        print("an argument is no UTF-8 text", file=sys.stderr)
        return WRONG
    except Failed as error:
        print(error, file=sys.stderr)
    except KeyError as error:
        print(f"the answer of {arguments.admin} has no {error}: is it the admin listener?", file=sys.stderr)
    return _FAILED


def place(*parts: str) -> str:
    """A path below `/api`."""
    return "/".join(["/api", *(quote(part, safe=":") for part in parts)])


def name(text: str) -> str:
    """An id, once the space is gone that `spaced` put behind it."""
    return text.strip()


def spaced(words: Sequence[str]) -> list[str]:
    """The words of a command line, so that an id that begins with a hyphen is not taken for an option."""
    of_ids = bool(words) and words[0] in _WITH_IDS
    return [f"{word} " if of_ids and _NAME.fullmatch(word) else word for word in words]


def _admin(text: str) -> str:
    if not _URL.fullmatch(text):
        raise argparse.ArgumentTypeError("must be http://HOST:PORT or https://HOST:PORT")
    return text


def _token(text: str) -> str:
    try:
        check_reference(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
