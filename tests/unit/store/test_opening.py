"""The store of a configuration: what its server can do, and whether it is as it was left."""

import io
import os
import shutil
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.config.models import Config, Store, Upstream
from gateway.store import clean, embedded
from gateway.store.embedded import Embedded, EmbeddedFailed
from gateway.store.opening import open_store
from gateway.store.port import StoreUnfit
from gateway.store.standing import Told
from gateway.telemetry import Telemetry
from tests.requirements import requirement

UPSTREAMS = (Upstream(name="reports", url="http://127.0.0.1:9/mcp"),)


def configured(url="redis://nowhere", durability="local"):
    return Config(store=Store(url=url, sent_durability=durability), upstreams=UPSTREAMS)


@pytest.fixture
def opened(tmp_path):
    """Opens the embedded store, reads its epoch, and leaves it."""

    async def look(*, durability="local", kill=False):
        log = io.StringIO()
        async with AsyncExitStack() as stack:
            config = configured("embedded:data", durability)
            found = await open_store(config, "embedded:data", tmp_path, Telemetry(log), stack)
            (policy,) = (await found.store.call("CONFIG", "GET", "appendfsync")).values()
            if kill:
                os.kill(int((tmp_path / "data" / "server.pid").read_text()), signal.SIGKILL)
            return found.store.epoch(), policy, "store_doubted" in log.getvalue()

    return look


@requirement("OWN-DOUBT")
async def test_after_a_clean_stop_the_store_is_the_same_and_after_a_kill_it_may_have_lost_something(opened, tmp_path):
    assert await opened() == (1, b"everysec", False)
    assert clean.sign_of(tmp_path / "data").exists()
    assert await opened(kill=True) == (1, b"everysec", False)
    assert not clean.sign_of(tmp_path / "data").exists()
    assert await opened() == (2, b"everysec", True)
    assert await opened() == (2, b"everysec", False)


@requirement("OWN-DOUBT")
async def test_a_copy_of_the_directory_that_is_put_back_is_another_store(opened, tmp_path):
    await opened()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    await opened()
    shutil.rmtree(tmp_path / "data")
    shutil.copytree(tmp_path / "copy", tmp_path / "data")
    assert await opened() == (2, b"everysec", True)


@requirement("OWN-DURABLE")
async def test_an_embedded_store_writes_at_once_where_that_is_wanted(opened, tmp_path):
    assert (await opened(durability="fsync"))[1] == b"always"
    other = Embedded(tmp_path / "data")
    await other.start()
    assert (await opened(durability="fsync"))[1] == b"always"
    await other.close()


async def test_a_running_embedded_store_that_cannot_be_told_is_not_used(tmp_path, monkeypatch):
    other = Embedded(tmp_path / "data")
    await other.start()

    async def refused(*_):
        return False

    monkeypatch.setattr(Embedded, "_tell", refused)
    failing = Embedded(tmp_path / "data", fsync=True)
    with pytest.raises(EmbeddedFailed, match="cannot be told to write at once"):
        await failing.start()
    await failing.close()
    await other.close()


async def test_a_sign_that_cannot_be_left_is_none(tmp_path, monkeypatch):
    assert not clean.leave(tmp_path / "none" / "data", "word")
    assert clean.take(tmp_path / "none" / "data") == ""
    monkeypatch.setattr(embedded, "_TELL_S", 0.1)
    assert not await Embedded(tmp_path / "data")._tell("PING")


@requirement("OWN-DURABLE")
async def test_a_server_that_cannot_do_what_is_asked_of_it_is_refused(redis, server, tmp_path):
    async def start(durability):
        async with AsyncExitStack() as stack:
            config = configured(server.url, durability)
            found = await open_store(config, server.url, Path(), Telemetry(io.StringIO()), stack)
            return found.store.makes_sure()

    with pytest.raises(StoreUnfit, match="set appendonly yes"):
        await start("fsync")
    assert await start("replica")
    await redis.config_set("appendonly", "yes")
    try:
        if (await redis.info("server"))["redis_version"] >= "7.2":
            assert await start("fsync")
        else:
            with pytest.raises(StoreUnfit, match=r"needs Redis 7\.2"):
                await start("fsync")
        await redis.config_set("appendfsync", "always")
        assert not await start("fsync")
    finally:
        await redis.config_set("appendfsync", "everysec")
        await redis.config_set("appendonly", "no")


@requirement("OWN-DOUBT")
async def test_a_server_that_may_not_be_asked_which_one_it_is_is_told_of(redis, server):
    await redis.execute_command("ACL", "SETUSER", "default", "-info", "-config")
    log = io.StringIO()
    try:
        async with AsyncExitStack() as stack:
            await open_store(configured(server.url, "fsync"), server.url, Path(), Telemetry(log), stack)
    finally:
        await redis.execute_command("ACL", "SETUSER", "default", "+info", "+config")
    assert '"event":"store_blind"' in log.getvalue()


async def test_an_embedded_store_has_no_replica(tmp_path):
    config = configured(durability="replica")
    async with AsyncExitStack() as stack:
        with pytest.raises(StoreUnfit, match="the embedded store has none"):
            await open_store(config, "embedded:data", tmp_path, Telemetry(io.StringIO()), stack)


@pytest.mark.parametrize(("version", "can"), [("7.0.15", False), ("7.2.4", True), ("8.0.0", True), ("", False)])
def test_servers_that_know_how_to_wait_for_their_file(version, can):
    assert Told.of(f"# Server\r\nredis_version:{version}\r\n").can_wait_for_file is can
