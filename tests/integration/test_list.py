"""`tasks/list` for callers that are told apart."""

import asyncio
import time
from itertools import chain

import pytest

from tests.integration.conftest import POLICY
from tests.integration.test_identity import (  # noqa: F401  # fixtures
    PUBLIC,
    as_,
    auth,
    gateway,
    idp,
    servers,
    with_session,
)
from tests.requirements import requirement
from tests.sse_client import opened, result_of, session_stream


async def pages(client):
    """Every page, by its cursors."""
    cursor, found = None, []
    while True:
        result = (await client.legacy("tasks/list", {} if cursor is None else {"cursor": cursor})).result
        found.append([task["taskId"] for task in result["tasks"]])
        cursor = result.get("nextCursor")
        if cursor is None:
            return found


@pytest.fixture
async def ann(gateway, idp):
    return await with_session(gateway, idp.token(sub="ann"))


@requirement("T25-LST-1", "T25-CAP-1")
async def test_every_own_task_is_there_once_newest_first(ann, gateway, idp, harness):
    bob = await with_session(gateway, idp.token(sub="bob"))
    assert (await ann.initialize()).result["capabilities"]["tasks"]["list"] == {}
    mine, theirs = [], []
    for _ in range(60):
        mine.append(await ann.task("echo"))
        theirs.append(await bob.task("echo"))
        await ann.legacy("tasks/result", {"taskId": mine[-1]})
        await bob.legacy("tasks/result", {"taskId": theirs[-1]})
    found = await pages(ann)
    assert [len(page) for page in found] == [50, 10]
    assert sorted(chain.from_iterable(found)) == sorted(mine)
    newest = (await ann.legacy("tasks/get", {"taskId": found[0][0]})).result
    oldest = (await ann.legacy("tasks/get", {"taskId": found[-1][-1]})).result
    assert newest["createdAt"] >= oldest["createdAt"]
    first = (await ann.legacy("tasks/list")).result["tasks"][0]
    assert first == newest


@requirement("T25-LST-1")
async def test_a_page_holds_what_was_there_all_along_whatever_comes_and_goes(ann, redis):
    kept = [await finished(ann) for _ in range(55)]
    first = (await ann.legacy("tasks/list")).result
    await asyncio.gather(*(finished(ann) for _ in range(5)))
    shown = [task["taskId"] for task in first["tasks"]]
    gone = shown[10]
    (key,) = await redis.keys(f"*:t:*{gone}")
    await redis.delete(key)
    second = (await ann.legacy("tasks/list", {"cursor": first["nextCursor"]})).result
    shown += [task["taskId"] for task in second["tasks"]]
    assert sorted(shown) == sorted(kept)
    assert "nextCursor" not in second
    assert gone not in chain.from_iterable(await pages(ann))


@requirement("T25-LST-1")
async def test_a_cursor_that_was_not_made_for_this_owner_is_refused(ann, gateway, idp):
    for _ in range(51):
        await finished(ann)
    cursor = (await ann.legacy("tasks/list")).result["nextCursor"]
    bob = await with_session(gateway, idp.token(sub="bob"))
    for client, wrong in (
        (bob, cursor),
        (ann, ""),
        (ann, "x"),
        (ann, cursor[:-1]),
        (ann, ("B" if cursor.startswith("A") else "A") + cursor[1:]),
        (ann, 7),
        (ann, "é"),
        (ann, "x" * 10_000),
    ):
        refused = await client.legacy("tasks/list", {"cursor": wrong})
        assert (refused.status, refused.error["code"]) == (200, -32602)


@requirement("T25-LST-2")
async def test_what_cannot_be_got_is_not_listed(ann, upstream, redis):
    hidden = asyncio.create_task(ann.legacy_call("gate", {"name": "a"}))
    await upstream.until(lambda: upstream.calls("gate"))
    task_id = await ann.task("gate", {"name": "a"})
    assert await pages(ann) == [[task_id]]
    (key,) = await redis.keys(f"*:t:*{task_id}")
    await redis.delete(key)
    assert await pages(ann) == [[]]
    upstream.open("a")
    await hidden
    assert await pages(ann) == [[]]


async def finished(client):
    task_id = await client.task("echo")
    await client.legacy("tasks/result", {"taskId": task_id})
    return task_id


@requirement("TX-NOT-4")
async def test_a_subscription_ends_with_the_token(gateway, idp):
    client = as_(gateway, idp.token(exp=time.time() + 1))
    task_id = (await client.call("gate", {"name": "a"})).result["taskId"]
    body, headers = client.modern_request("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})
    async with opened(client, body, {**headers, "Authorization": f"Bearer {client.token}"}) as stream:
        assert (await stream.message())["method"] == "notifications/subscriptions/acknowledged"
        assert (await stream.message(""))["result"]["resultType"] == "complete"


@requirement("T25-SEC-2")
@pytest.mark.parametrize("of_task", [False, True])
async def test_a_stream_of_a_session_ends_with_the_token_and_is_had_again_with_a_fresh_one(gateway, idp, of_task):
    client = await with_session(gateway, idp.token(exp=time.time() + 1))
    task_id = await client.task("gate", {"name": "a"})
    async with result_of(client, task_id) if of_task else session_stream(client) as stream:
        assert b"retry: " in await stream.end()
    client.token = idp.token()
    async with session_stream(client, stream.ids[-1] if of_task else None) as again:
        assert again.status == 200


@requirement("TX-NOT-4")
async def test_a_subscription_shows_no_task_that_the_token_may_not_read(harness, auth, idp):
    tool = {"match": "gate", "task_support": "optional", "read_scopes": ["look"]}
    client = await harness.start({**POLICY, "tools": [tool]}, auth=auth, public_url=PUBLIC)
    client = as_(client, idp.token())
    task_id = (await client.call("gate", {"name": "a"})).result["taskId"]
    body, headers = client.modern_request("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})
    async with opened(client, body, {**headers, "Authorization": f"Bearer {client.token}"}) as stream:
        assert (await stream.message())["params"]["notifications"] == {"taskIds": []}


@pytest.fixture
async def two_tokens(harness, auth, idp):
    """One session of one person: with the scope that `gate` and `ask` are read with, and without it."""
    tools = [{"match": name, "task_support": "optional", "read_scopes": ["look"]} for name in ("gate", "ask")]
    client = await harness.start({**POLICY, "tools": tools}, auth=auth, public_url=PUBLIC)
    able, lost = as_(client, idp.token(scope="look")), as_(client, idp.token())
    await able.initialize(capabilities={"elicitation": {}})
    lost.session = able.session
    return able, lost


@requirement("T25-SEC-2", "T25-RES-1")
async def test_a_wait_is_not_resumed_for_a_token_that_may_not_read_the_task(two_tokens, upstream):
    able, lost = two_tokens
    task_id = await able.task("gate", {"name": "a"})
    async with result_of(able, task_id) as stream:
        await stream.event()
    async with session_stream(lost, stream.ids[0]) as refused:
        assert refused.status == 400
    upstream.open("a")
    async with session_stream(able, stream.ids[0]) as resumed:
        assert (await resumed.message(""))["result"]["content"][0]["text"] == "through a"


@requirement("T25-SEC-2", "T25-ST-3")
async def test_the_stream_of_a_session_tells_nothing_of_a_task_that_its_token_may_not_read(two_tokens, upstream):
    able, lost = two_tokens
    async with session_stream(lost) as stream:
        await stream.event()
        task_id = await able.task("ask", {})
        while (await able.legacy("tasks/get", {"taskId": task_id})).result["status"] != "input_required":
            pass
        done = await able.task("echo")
        assert (await stream.message())["params"]["taskId"] == done
        assert task_id.encode() not in stream.raw


@requirement("T25-SEC-2", "T25-INP-1")
async def test_an_answer_to_a_question_asks_for_the_scope_of_its_task(two_tokens):
    able, lost = two_tokens
    task_id = await able.task("ask", {})
    async with result_of(able, task_id) as stream:
        question = await stream.message("elicitation/create")
        said = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"name": "ada"}}}
        refused = await lost.post(said, lost.session)
        assert (refused.status, refused.error["data"]["requiredScopes"]) == (403, ["look"])
        assert "insufficient_scope" in refused.headers["WWW-Authenticate"]
        assert (await able.legacy("tasks/get", {"taskId": task_id})).result["status"] == "input_required"
        assert (await able.post(said, able.session)).status == 202
        assert (await stream.message(""))["result"]


@requirement("TX-NOT-1", "T25-LST-1", "T25-SEC-1")
@pytest.mark.parametrize("stranger", [{"sub": "bob"}, {"tid": "other"}])
async def test_a_stranger_is_told_and_shown_what_an_unknown_task_is(gateway, idp, stranger):
    ann = await with_session(gateway, idp.token(sub="ann"))
    task_id = await ann.task("gate", {"name": "a"})
    other = await with_session(gateway, idp.token(**stranger))
    assert await pages(other) == [[]]
    told = []
    for asked in (task_id, "x" * 32):
        body, headers = other.modern_request("subscriptions/listen", {"notifications": {"taskIds": [asked]}})
        async with opened(other, body, {**headers, "Authorization": f"Bearer {other.token}"}) as stream:
            seen = {name: value for name, value in stream.response.headers.items() if name != "Date"}
            told.append((stream.status, seen, await stream.message()))
    assert told[0] == told[1]
    assert told[0][2]["params"]["notifications"] == {"taskIds": []}
