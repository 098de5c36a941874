"""Who hears what names a task of an upstream."""

import asyncio

import pytest
from msgspec import Raw

from gateway.upstream import followers as module
from gateway.upstream.followers import Followers
from gateway.upstream.port import WithId, put
from gateway.wire import asking
from gateway.wire.jsonrpc import Notification, Request, members, write
from tests.requirements import requirement

RELATED = "io.modelcontextprotocol/related-task"
STATUS = "notifications/tasks/status"


def params(**said):
    return members(write(said))


def of(task, **more):
    return params(_meta={RELATED: {"taskId": task}}, **more)


async def yes(request_id, method, asked):
    return True, f"{request_id} {method} {bytes(asked['n']).decode()}".encode()


async def ask(followers, asked):
    on_request = followers.asks(asked)
    return await put(on_request, Request(b'"q"', "roots/list", asked))


@requirement("BR-3")
@pytest.mark.parametrize(
    ("method", "said", "heard", "taken"),
    [
        (STATUS, params(taskId="a"), ["a"], True),
        ("notifications/tasks", params(taskId="b"), ["b"], True),
        (STATUS, params(taskId="nobody follows it"), [], True),
        ("notifications/message", of("a"), ["a"], True),
        ("notifications/message", params(data=1), [], False),
        ("notifications/progress", params(progressToken=1), ["a", "b"], True),
        ("notifications/progress", of("a", progressToken=1), ["a", "b"], True),
    ],
)
def test_a_notification_reaches_who_follows_its_task(method, said, heard, taken):
    followers, told = Followers(), []
    with (
        followers.following("a", lambda _: told.append("a"), WithId(yes)),
        followers.following("b", lambda _: told.append("b"), WithId(yes)),
    ):
        assert followers.told(Notification(method, said)) is taken
    assert told == heard
    assert not followers


def test_progress_that_nobody_follows_is_for_others():
    assert not Followers().told(Notification("notifications/progress", params(progressToken=1)))


@requirement("BR-3")
async def test_a_question_waits_for_who_will_follow_its_task():
    followers = Followers()
    asking_early = asyncio.ensure_future(ask(followers, of("a", n=1)))
    with followers.following("b", lambda _: None, WithId(yes)):
        await asyncio.sleep(0)
        assert not asking_early.done()
        with followers.following("a", lambda _: None, WithId(yes)):
            assert await asking_early == (True, b'"q" roots/list 1')


@requirement("BR-3")
async def test_a_question_of_a_task_that_nobody_follows_is_refused(monkeypatch):
    monkeypatch.setattr(module, "SOON_S", 0.01)
    assert await ask(Followers(), of("a", n=1)) == (False, asking.UNDECLARED)


def test_a_question_that_names_no_task_is_for_others():
    assert Followers().asks({"_meta": Raw(b"{}")}) is None
