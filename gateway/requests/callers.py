"""Who calls what: an endpoint, a caller, and what the policy wants of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gateway.core.model import Owner, Principal
from gateway.policy.decide import Policy
from gateway.policy.model import Settings
from gateway.upstream.port import Upstream
from gateway.wire import approval
from gateway.wire.errors import Era, Reject
from gateway.wire.intent import Speech


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An upstream as the request loop sees it."""

    name: str
    upstream: Upstream
    policy: Policy


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and how they speak. In legacy eras `version` is the session's."""

    principal: Principal
    owner: Owner
    speech: Speech
    version: str
    capabilities: str

    @property
    def era(self) -> Era:
        """The era of the request."""
        return self.speech.era

    @property
    def session(self) -> str:
        """The legacy session of the request; empty in the modern era, which has none."""
        return self.speech.session or ""


def lacks_scope(principal: Principal, wanted: Sequence[str]) -> Reject | None:
    """T25-SEC-2: every operation asks anew for what the policy wants of its caller."""
    missing = [scope for scope in wanted if scope not in principal.scopes]
    if not missing:
        return None
    return Reject("forbidden", "The token lacks a scope that this needs", {"requiredScopes": list(wanted)})


def lacks_answer_scope(principal: Principal, settings: Settings, keys: Collection[str]) -> Reject | None:
    """Who agrees to a call, or refuses to, needs what the call itself needs, whatever the token was that made it."""
    return lacks_scope(principal, settings.create_scopes) if approval.concerns(keys) else None


def draining() -> Reject:
    """An operator wants this process to begin nothing."""
    return Reject("draining", "This gateway takes no new work: try again, another one may answer")


def store_away() -> Reject:
    """Nothing was promised."""
    return Reject("store_away", "The gateway cannot reach its store: try again")
