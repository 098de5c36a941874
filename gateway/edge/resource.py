"""The endpoints as protected resources of OAuth (RFC 9728): their names, their documents, and what a refusal asks for.

Everything here comes from the configuration. A header of a request can change none of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.wire.jsonrpc import write
from gateway.wire.reply import Reply

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


@dataclass(frozen=True, slots=True)
class Resources:
    """`origin` is the part that all URLs share. Without issuers there are no tokens, and nothing is protected."""

    origin: str
    issuers: Sequence[str] = ()

    def url(self, upstream: str | None) -> str:
        """The URL of an endpoint, which is the audience of its tokens. None is the endpoint without a name."""
        return f"{self.origin}{_path(upstream)}"

    def document(self, upstream: str | None, name: str, scopes: Sequence[str]) -> bytes:
        """What a client must know to get a token. `name` is that of the upstream behind the endpoint."""
        document = {
            "resource": self.url(upstream),
            "authorization_servers": list(self.issuers),
            "bearer_methods_supported": ["header"],
            "resource_name": name,
        }
        # RFC 9728, 3.2: a list with nothing in it is left out.
        return write({**document, "scopes_supported": list(scopes)} if scopes else document)

    def challenged(self, answer: Reply, upstream: str | None, scopes: Sequence[str]) -> Reply:
        """The answer; a refusal for want of a token or of a scope says where and how to get a better one."""
        if not self.issuers or answer.reason not in ("unauthenticated", "forbidden"):
            return answer
        parameters = {"resource_metadata": f"{self.origin}{WELL_KNOWN}{_path(upstream)}"}
        if answer.reason == "forbidden":
            parameters["error"] = "insufficient_scope"
            wanted = answer.data.get("requiredScopes")
            scopes = wanted if isinstance(wanted, list) else ()
        elif "error" in answer.data:
            parameters["error"] = str(answer.data["error"])
        if scopes:
            parameters["scope"] = " ".join(scopes)
        challenge = ", ".join(f'{key}="{value}"' for key, value in parameters.items())
        return replace(answer, headers={**answer.headers, "WWW-Authenticate": f"Bearer {challenge}"})


def _path(upstream: str | None) -> str:
    return "/mcp" if upstream is None else f"/{upstream}/mcp"
