"""The operator's API below `/api`: JSON in, JSON out. What is wrong with a request is said before anything is done."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from aiohttp import web
from pydantic import AfterValidator, BaseModel, Field, model_validator

from gateway.config.findings import examine
from gateway.core.model import OperationState, TaskState
from gateway.edge.guard import Guard, Problem, answer
from gateway.operating.actions import Denied, Operating, Scope, Wanted
from gateway.operating.erasing import Person
from gateway.policy.shape import STRICT, Finding, refuse
from gateway.store.ledger import Sought
from gateway.store.port import StoreAway
from gateway.telemetry import Telemetry

MOST_BYTES: Final = 16_384
"""A body of a request."""

_Said: TypeAlias = Mapping[str, Any] | Denied
_Handler: TypeAlias = Callable[[web.Request], Awaitable[_Said]]
_M = TypeVar("_M", bound=BaseModel)
_STATUS: Final = {"not_found": 404, "invalid": 400, "refused": 409}


def _one_line(value: str) -> str:
    if not value.isprintable():
        message = "must be one line without control characters"
        raise ValueError(message)
    return value


_Who: TypeAlias = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_one_line)]
_Why: TypeAlias = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_one_line)]
_Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=1000)]
_Count: TypeAlias = Annotated[int, Field(strict=False, ge=1, le=500)]


class _Query(BaseModel):
    """Which entries are listed. Numbers come as text."""

    model_config = STRICT
    upstream: str | None = None
    older_than_s: Annotated[int, Field(strict=False, ge=0, le=10**9)] = 0
    limit: _Count = 100
    cursor: Annotated[str, Field(max_length=512)] | None = None


class _TaskQuery(_Query):
    state: Literal[tuple(map(str, TaskState))] | None = None  # type: ignore[valid-type]  # the states as they are


class _LedgerQuery(_Query):
    state: Literal[tuple(map(str, OperationState))] | None = None  # type: ignore[valid-type]  # likewise


class _Act(BaseModel):
    """Who acts, in the operator's own words."""

    model_config = STRICT
    by: _Who = "admin"


class _Drain(_Act):
    on: bool


class _Resolve(_Act):
    outcome: Literal["succeeded", "failed"]
    reason: _Why


class _Switch(_Act):
    """`all`, an `upstream`, a `tool` of an upstream, or a `tenant` of an `issuer`: exactly one of them."""

    on: bool
    reason: _Why
    all: Literal[True] | None = None
    upstream: _Name | None = None
    tool: _Name | None = None
    issuer: _Name | None = None
    tenant: _Name | None = None

    @model_validator(mode="after")
    def _one_scope(self) -> "_Switch":
        given = {name for name in ("all", "upstream", "tool", "issuer", "tenant") if getattr(self, name) is not None}
        if given not in ({"all"}, {"upstream"}, {"upstream", "tool"}, {"issuer", "tenant"}):
            refuse([Finding((("scope",),), "must be all, or upstream, or upstream and tool, or issuer and tenant")])
        return self


class _Erase(_Act):
    subject: _Name
    issuer: _Name | None = None
    tenant: _Name | None = None
    cursor: str | None = None


class _Wrong(Exception):  # noqa: N818  # carries what is said about a request
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.reason)
        self.problem = problem


class Api:
    """The routes, each behind the guard."""

    def __init__(self, operating: Operating, guard: Guard, telemetry: Telemetry) -> None:
        self._operating = operating
        self._guard = guard
        self._telemetry = telemetry
        self._acting: set[asyncio.Task[web.Response]] = set()

    def routes(self) -> list[web.RouteDef]:
        """Everything below `/api`, what is not there included."""
        known = {
            ("GET", "/api/tasks"): self._tasks,
            ("GET", "/api/tasks/{id}"): self._show,
            ("POST", "/api/tasks/{id}/cancel"): self._cancel,
            ("GET", "/api/ledger"): self._ledger,
            ("GET", "/api/ledger/{id}"): self._show,
            ("POST", "/api/ledger/{id}/resolve"): self._resolve,
            ("GET", "/api/switch"): self._switches,
            ("POST", "/api/switch"): self._switch,
            ("POST", "/api/erase"): self._erase,
            ("POST", "/api/drain"): self._drain,
            ("*", "/api"): self._nothing,
            ("*", "/api/{rest:.*}"): self._nothing,
        }
        return [web.route(method, path, self._guarded(handler)) for (method, path), handler in known.items()]

    def _guarded(self, handler: _Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def guarded(request: web.Request) -> web.Response:
            problem = self._guard.refuses(request) or await _unreadable(request)
            if problem is not None:
                return self._refused(problem)
            if request.method == "GET":
                return await self._served(handler, request)
            # What was begun is ended and written down, whether or not anybody still waits for the answer.
            acting = asyncio.ensure_future(self._served(handler, request))
            self._acting.add(acting)
            acting.add_done_callback(self._acting.discard)
            return await asyncio.shield(acting)

        return guarded

    async def _served(self, handler: _Handler, request: web.Request) -> web.Response:
        try:
            said = await handler(request)
        except _Wrong as wrong:
            return self._refused(wrong.problem)
        except StoreAway:
            return self._refused(Problem(503, "store_away", "the store does not answer: try again", retryable=True))
        except Exception as error:  # noqa: BLE001  # the message may hold what is in a record
            self._telemetry.fault("admin", error)
            return self._refused(Problem(500, "internal", "a fault of the gateway: see its log"))
        if isinstance(said, Denied):
            return self._refused(Problem(_STATUS[said.reason], said.reason, said.message))
        self._telemetry.admin("ok")
        return answer(said)

    def _refused(self, problem: Problem) -> web.Response:
        self._telemetry.admin(problem.reason)
        return problem.response()

    async def _tasks(self, request: web.Request) -> _Said:
        query = _queried(request, _TaskQuery)
        return await self._listed(query, Sought(task=TaskState(query.state) if query.state else True))

    async def _ledger(self, request: web.Request) -> _Said:
        query = _queried(request, _LedgerQuery)
        return await self._listed(query, Sought(OperationState(query.state) if query.state else None))

    async def _listed(self, query: _Query, sought: Sought) -> _Said:
        wanted = Wanted(sought, query.upstream, query.older_than_s * 1000, query.limit, query.cursor)
        return await self._operating.listed(wanted)

    async def _show(self, request: web.Request) -> _Said:
        return await self._operating.shown(request.match_info["id"])

    async def _cancel(self, request: web.Request) -> _Said:
        act = await _body(request, _Act)
        return await self._operating.cancel(request.match_info["id"], act.by)

    async def _resolve(self, request: web.Request) -> _Said:
        act = await _body(request, _Resolve)
        name, succeeded = request.match_info["id"], act.outcome == "succeeded"
        return await self._operating.resolve(name, succeeded=succeeded, reason=act.reason, by=act.by)

    async def _switches(self, _: web.Request) -> _Said:
        return await self._operating.switches()

    async def _switch(self, request: web.Request) -> _Said:
        act = await _body(request, _Switch)
        scope = Scope(act.upstream or "", act.tool or "", act.issuer or "", act.tenant)
        return await self._operating.switch(scope, on=act.on, reason=act.reason, by=act.by)

    async def _erase(self, request: web.Request) -> _Said:
        act = await _body(request, _Erase)
        person = Person(act.subject, act.issuer, act.tenant)
        return await self._operating.erase(person, act.cursor, act.by)

    async def _drain(self, request: web.Request) -> _Said:
        act = await _body(request, _Drain)
        return self._operating.drain(on=act.on, by=act.by)

    async def _nothing(self, _: web.Request) -> _Said:
        return Denied("not_found", "there is nothing here for this method: see docs/operations.md")


def _queried(request: web.Request, model: type[_M]) -> _M:
    return _checked(_once(list(request.query.items())), model)


def _once(given: list[tuple[str, Any]]) -> dict[str, Any]:
    """What names say that come once each: of two that say different things neither counts."""
    names = [name for name, _ in given]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise _Wrong(Problem(400, "invalid", f"{', '.join(repeated)}: given more than once"))
    return dict(given)


async def _unreadable(request: web.Request) -> Problem | None:
    """Reads the body, which is kept with the request."""
    try:
        await request.read()
    except web.HTTPRequestEntityTooLarge:
        return Problem(413, "too_large", f"the body is larger than {MOST_BYTES} bytes")
    return None


async def _body(request: web.Request, model: type[_M]) -> _M:
    try:
        values = json.loads(await request.read() or b"{}", object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _Wrong(Problem(400, "invalid", "the body is no JSON")) from error
    if not isinstance(values, dict):
        raise _Wrong(Problem(400, "invalid", "the body must be a JSON object"))
    return _checked(values, model)


def _checked(values: Mapping[str, Any], model: type[_M]) -> _M:
    """The values as the model has them, or all that is wrong with them. No value is repeated."""
    findings = examine(model, values)
    if findings:
        told = "; ".join(f"{'.'.join(map(str, found.keys[0]))}: {found.message}" for found in findings)
        raise _Wrong(Problem(400, "invalid", told))
    return model.model_validate(values)
