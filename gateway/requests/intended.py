"""What a call is about to change, as the policy of its tool describes it: for the ledger, before anything is sent."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from gateway.core.model import Approval, Inquiry
from gateway.policy.model import Settings
from gateway.policy.operation import DERIVED, OperationRule
from gateway.policy.operation import Approval as ApprovalRule
from gateway.policy.operation import Reconcile as ReconcileRule
from gateway.policy.template import Place, Template
from gateway.wire import canonical
from gateway.wire.errors import Reject
from gateway.wire.intent import CallTool
from gateway.wire.jsonrpc import members, text, write
from gateway.wire.pointers import find, path_of
from gateway.wire.shown import one_line

_LONGEST_KEY: Final = 256
_LONGEST: Final = 1000
_AT_ONCE_BYTES: Final = 16_384
_TWICE: Final = Reject("arguments", "An argument is named twice: which one counts is not the same for all who read it")
_SCALAR: Final = re.compile(rb'".*"|-?[0-9].*', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Intended:
    """What an operation is created with. `key_for_ms` is how long a key is good that was derived."""

    arguments_digest: str
    key: str = ""
    derived: bool = False
    key_for_ms: int | None = None
    object_version: str = ""
    effect: str = ""
    inquiry: Inquiry | None = None
    approval: Approval | None = None


async def weighed(call: CallTool, settings: Settings) -> Intended | Reject:
    """`intended`, but large arguments are read beside the loop: it takes as long as many small requests."""
    if len(call.arguments) <= _AT_ONCE_BYTES:
        return intended(call, settings)
    return await asyncio.to_thread(intended, call, settings)


def intended(call: CallTool, settings: Settings) -> Intended | Reject:
    """What this call is about to change, or why it must not be made as it is."""
    meaning, rule = canonical.meaning(call.arguments), settings.operation
    digest = meaning.digest
    if rule is None:
        return Intended(digest)
    if meaning.ambiguous:
        return _TWICE
    key = _key(call, rule, digest)
    if isinstance(key, Reject):
        return key
    inquiry = None if rule.reconcile is None else _inquiry(call, rule.reconcile, first=settings.on_lost == "reconcile")
    if isinstance(inquiry, Reject):
        return inquiry
    approval = None if rule.approval is None else _approval(call, rule.approval)
    if isinstance(approval, Reject):
        return approval
    derived = rule.idempotency_key == DERIVED
    return Intended(
        digest,
        key,
        derived=derived,
        key_for_ms=rule.derived_window_s * 1000 if derived else None,
        object_version=_at(call, rule.object_version)[:_LONGEST],
        effect="" if rule.intended_effect is None else shown(rule.intended_effect, call.arguments),
        inquiry=inquiry,
        approval=approval,
    )


def shown(template: str, arguments: bytes) -> str:
    """A template for people: one line, of bounded length, without what could deceive them."""
    return one_line(_rendered(template, arguments), _LONGEST)


def _rendered(template: str, arguments: bytes) -> str:
    def look(place: Place) -> str:
        found = find(arguments, place.path)
        return "" if found is None else _plain(found)

    return Template.parse(template).render(look)


def _approval(call: CallTool, rule: ApprovalRule) -> Approval | Reject:
    """Nobody is asked to agree to something of which a part is missing."""
    if len(_rendered(rule.message, call.arguments)) > _LONGEST:
        return Reject(
            "arguments", f"What has to be approved must be told in {_LONGEST} characters: shorten the arguments"
        )
    return Approval(shown(rule.message, call.arguments), rule.timeout_s * 1000)


def _plain(found: Raw) -> str:
    written = text(found)
    return bytes(found).decode() if written is None else written


def _key(call: CallTool, rule: OperationRule, digest: str) -> str | Reject:
    if rule.idempotency_key is None:
        return ""
    if rule.idempotency_key == DERIVED:
        return digest
    kind, _, where = rule.idempotency_key.partition(":")
    if kind == "meta":
        found = (members(call.params.get("_meta", b"{}")) or {}).get(where)
    else:
        found = find(call.arguments, path_of(where))
    if found is None:
        missing = Reject("arguments", f"This tool needs an idempotency key: {rule.idempotency_key}")
        return missing if rule.missing_key == "refuse" else ""
    key = _plain(found) if _SCALAR.fullmatch(bytes(found)) else ""
    if not key or len(key) > _LONGEST_KEY:
        return Reject("arguments", f"An idempotency key is a string or a number of 1 to {_LONGEST_KEY} characters")
    return key


def _at(call: CallTool, source: str | None) -> str:
    """What stands at `argument:/POINTER`, as JSON text; empty where nothing does."""
    if source is None:
        return ""
    found = find(call.arguments, path_of(source.partition(":")[2]))
    return "" if found is None else bytes(found).decode()


def _inquiry(call: CallTool, rule: ReconcileRule, *, first: bool) -> Inquiry | Reject:
    """The arguments are resolved now: later nobody has those of the call."""
    missing: list[str] = []
    arguments = _filled(rule.arguments, call.arguments, missing)
    if missing:
        return Reject("arguments", f"This tool needs the argument {missing[0]}: by it the outcome is looked up")
    return Inquiry(rule.tool, write(arguments).decode(), rule.budget_s * 1000, first=first)


def _filled(value: object, arguments: bytes, missing: list[str]) -> object:
    """A value of the policy with its templates filled in. A text that is a place alone becomes the value itself."""
    if isinstance(value, Mapping):
        return {name: _filled(item, arguments, missing) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(item, arguments, missing) for item in value]
    if not isinstance(value, str):
        return value

    def look(place: Place) -> str:
        found = find(arguments, place.path)
        if found is None:
            missing.append(".".join(place.path))
            return ""
        return _plain(found)

    template = Template.parse(value)
    if template.alone is not None and (found := find(arguments, template.alone.path)) is not None:
        return Raw(bytes(found))
    return template.render(look)
