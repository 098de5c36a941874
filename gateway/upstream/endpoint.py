"""Where a server of 2024-11-05 wants messages to be posted: what it says in its stream, and what is made of that."""

import re
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

_PORTS: Final = {"http": 80, "https": 443}
_UNFIT: Final = re.compile(r"[\s\\\x00-\x1f\x7f]")
"""What URLs do not hold, and what readers of URLs disagree about."""


def resolved(url: str, said: bytes) -> str | None:
    """The URL that `said` means in the stream of `url`, or None: it is no URL, or one of another origin.

    Credentials go along with every message, so they must not be led elsewhere. Scheme, host and port of what is
    given are those of `url` as the operator wrote them; none of it is taken from the server.
    """
    try:
        text = said.decode()
        if not text or _UNFIT.search(text):
            return None
        here, there = urlsplit(url), urlsplit(urljoin(url, text))
        if _origin(here) != _origin(there) or "@" in there.netloc:
            return None
    except ValueError:
        return None
    return urlunsplit((here.scheme, here.netloc, there.path or "/", there.query, ""))


def _origin(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or _PORTS.get(url.scheme)
