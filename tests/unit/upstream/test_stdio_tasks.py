"""Processes that have Tasks of their own: requests about tasks, and the questions of tasks."""

import asyncio

import pytest

from gateway.upstream.port import Call, NotSent, WithId
from gateway.wire.jsonrpc import members, text, write
from gateway.wire.theirs_2025 import related
from tests.requirements import requirement
from tests.stdio_server import ALICE, BOB, call_of

ELICITATION = '{"elicitation":{}}'


def about(upstream, method, task):
    return Call(upstream.next_id(), method, members(write({"taskId": task})), 10_000)


async def made(upstream, link, tool, **arguments):
    """The id of a new task."""
    answer = await upstream.perform(link, call_of(upstream, tool, **arguments))
    return text(members(members(answer.body)["task"])["taskId"])


@requirement("BR-3")
async def test_a_wait_for_a_result_keeps_no_other_request_about_tasks_waiting(make, stdio):
    upstream = make("tasks")
    link = await upstream.open(ALICE, ELICITATION)
    task = await made(upstream, link, "job", name="a")
    waiting = asyncio.ensure_future(upstream.perform(link, about(upstream, "tasks/result", task)))
    await stdio.until(lambda: "tasks/result" in stdio.methods())
    assert b'"working"' in (await upstream.perform(link, about(upstream, "tasks/get", task))).body
    stdio.open("a")
    assert b"job is done" in (await waiting).body


@requirement("BR-3")
async def test_a_request_about_tasks_that_nobody_waits_for_leaves_the_process_alone(make, stdio):
    upstream = make("tasks")
    link = await upstream.open(ALICE, ELICITATION)
    task = await made(upstream, link, "job", name="a")
    waiting = asyncio.ensure_future(upstream.perform(link, about(upstream, "tasks/result", task)))
    await stdio.until(lambda: "tasks/result" in stdio.methods())
    waiting.cancel()
    await asyncio.wait({waiting})
    assert b'"working"' in (await upstream.perform(link, about(upstream, "tasks/get", task))).body
    assert stdio.cancelled() == []


@requirement("BR-3")
async def test_questions_of_tasks_reach_each_its_own(make):
    upstream = make("tasks")
    link = await upstream.open(ALICE, ELICITATION)
    tasks = [await made(upstream, link, "question") for _ in range(2)]
    heard = {}

    async def wait_for(task):
        async def ask(request_id, _, params):
            heard[task] = (request_id, related(params))
            return True, b'{"action":"accept","content":{"name":"for %b"}}' % task.encode()

        return await upstream.perform(link, about(upstream, "tasks/result", task), None, WithId(ask))

    first, second = await asyncio.gather(*(wait_for(task) for task in tasks))
    assert heard == {task: (f'"q-{task}"', task) for task in tasks}
    assert f"for {tasks[0]}".encode() in first.body
    assert f"for {tasks[1]}".encode() in second.body


@requirement("BR-3")
async def test_a_question_of_a_task_that_nobody_waits_for_is_put_to_who_follows_it(make):
    upstream = make("tasks")
    link = await upstream.open(ALICE, ELICITATION)
    asked = asyncio.get_running_loop().create_future()

    async def ask(request_id, method, params):
        asked.set_result((method, related(params)))
        return True, b'{"action":"decline"}'

    task = await made(upstream, link, "aside")
    following = asyncio.ensure_future(upstream.follow(link, task, lambda _: None, WithId(ask)))
    assert await asked == ("elicitation/create", task)
    following.cancel()
    await asyncio.wait({following})


@requirement("BR-3", "OWN-APART")
async def test_a_session_of_another_gateway_or_principal_is_none_of_ours(make):
    upstream = make("tasks")
    link = await upstream.open(ALICE, ELICITATION)
    other = make("tasks", first_id=1000)
    await other.open(ALICE, ELICITATION)
    for asked, found in ((other, link), (upstream, type(link)(BOB, link.version, link.session_id, ELICITATION))):
        with pytest.raises(NotSent) as caught:
            await asked.perform(found, about(asked, "tasks/get", "x"))
        assert caught.value.ended
    assert not upstream.spare(link)
