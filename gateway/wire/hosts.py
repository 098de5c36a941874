"""Which Host and Origin headers are served: what keeps a web page from talking to a listener on this machine."""

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Hosts:
    """`loopback` listeners serve loopback names only; elsewhere the operator's ingress decides on the Host."""

    loopback: bool
    origins: Collection[str] = ()

    def refuses(self, host: str | None, origin: str | None) -> str | None:
        """Why a request is refused, or None."""
        if self.loopback and not is_local(f"//{host or ''}"):
            return "Host not allowed: this listener serves loopback names only"
        if origin is None or origin.lower() in {allowed.lower().rstrip("/") for allowed in self.origins}:
            return None
        if self.loopback and is_local(origin):
            return None
        return "Origin not allowed: add it to server.allowed_origins"


def is_local(url: str) -> bool:
    """Whether a URL's host is this machine."""
    try:
        name = urlsplit(url).hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
