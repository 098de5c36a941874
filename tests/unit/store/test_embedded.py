"""The store that the gateway brings itself."""

import asyncio
import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from gateway.store import clean, embedded
from gateway.store.embedded import Embedded, EmbeddedFailed, find_server, socket_path
from tests.integration.conftest import eventually
from tests.requirements import requirement


@pytest.fixture
async def directory(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def runtime(monkeypatch):
    """Another runtime directory, with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@requirement("OWN-ADOPT")
async def test_a_second_gateway_adopts_the_server_and_the_last_one_stops_it(directory):
    first, second = Embedded(directory), Embedded(directory)
    await first.start()
    await second.start()
    assert (first.adopted, second.adopted) == (False, True)
    assert first.url == second.url
    pid = first.pid()
    await first.close()
    assert second.pid() == pid
    os.kill(pid, 0)
    await second.close()
    first._child.wait()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_server_that_died_is_started_again(directory):
    store = Embedded(directory)
    await store.start()
    first = store.pid()
    os.kill(first, signal.SIGKILL)

    async def look():
        return store.pid() != first and await embedded._ping(store.socket) == b"+PONG"

    await eventually(look)
    await store.close()


@requirement("OWN-DRAIN")
async def test_a_server_that_does_not_end_keeps_nobody_from_stopping(directory, monkeypatch):
    store = Embedded(directory, "marker")
    await store.start()
    monkeypatch.setattr(embedded, "_START_TIMEOUT_S", 0.1)
    monkeypatch.setattr(embedded, "_TELL_S", 0.1)
    os.kill(store.pid(), signal.SIGSTOP)
    closed = threading.Event()
    rescue = threading.Thread(target=lambda: closed.wait(5) or os.kill(store.pid(), signal.SIGCONT))
    rescue.start()
    await store.close()
    late = not rescue.is_alive()
    closed.set()
    os.kill(store.pid(), signal.SIGKILL)
    store._child.wait()
    assert not late
    assert not clean.sign_of(directory).exists()


async def test_the_process_that_has_the_id_of_a_dead_server_is_left_alone(directory, monkeypatch):
    monkeypatch.setattr(embedded, "_WATCH_S", 60)
    store = Embedded(directory)
    await store.start()
    store._child.kill()
    store._child.wait()
    another = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    (directory / "server.pid").write_text(str(another.pid))
    await store.close()
    assert await another.communicate(b"alive") == (b"alive", None)


async def test_a_server_is_found_although_the_runtime_directory_is_another_now(directory, runtime, monkeypatch):
    first = Embedded(directory)
    await first.start()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    second = Embedded(directory)
    assert second.socket != first.socket
    await second.start()
    assert (second.adopted, second.socket) == (True, first.socket)
    await second.close()
    await first.close()


async def test_a_server_that_reads_a_large_file_gets_its_time(directory, monkeypatch):
    answers = iter([b"", *[b"-LOADING Redis is loading"] * 4, b"+PONG"])

    async def ping(_):
        return next(answers)

    monkeypatch.setattr(embedded, "_ping", ping)
    monkeypatch.setattr(embedded, "_START_TIMEOUT_S", 0.05)
    monkeypatch.setattr(embedded, "_LOOK_S", 0.02)
    await Embedded(directory)._until_ready()


async def test_closing_what_was_never_started_does_nothing(directory):
    await Embedded(directory).close()


async def test_a_server_that_ends_at_once_is_told_with_its_log(directory, monkeypatch):
    monkeypatch.setattr(embedded, "find_server", lambda: "/bin/false")
    store = Embedded(directory)
    with pytest.raises(EmbeddedFailed, match=r"server\.log"):
        await store.start()
    monkeypatch.setattr(embedded, "find_server", lambda: "/no/such/program")
    with pytest.raises(EmbeddedFailed, match="cannot be started"):
        Embedded(directory)._spawn()
    await store.close()


async def test_a_directory_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedFailed, match=r"store\.url"):
        await Embedded(tmp_path / "file" / "data").start()


async def test_a_server_that_hangs_is_told(directory, monkeypatch):
    monkeypatch.setattr(embedded, "_START_TIMEOUT_S", 0.1)
    directory.mkdir()
    script = directory / "hang"
    script.write_text("#!/bin/sh\nexec sleep 30\n")
    script.chmod(0o700)
    monkeypatch.setattr(embedded, "find_server", lambda: str(script))
    store = Embedded(directory)
    with pytest.raises(EmbeddedFailed, match="did not answer"):
        await store.start()
    store._child.kill()
    store._child.wait()
    await store.close()


def test_the_socket_has_a_short_path_wherever_the_data_is(monkeypatch, tmp_path, runtime):
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    assert len(str(socket_path(deep))) < 107
    assert socket_path(deep).parent.parent == runtime
    long = tmp_path / ("z" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    assert long not in socket_path(deep).parents


def test_two_directories_have_two_sockets(tmp_path):
    assert socket_path(tmp_path / "a") != socket_path(tmp_path / "b")
    assert socket_path(tmp_path / "a") == socket_path(tmp_path / "b" / ".." / "a")


def test_the_bundled_server_comes_first_and_a_new_enough_one_on_the_path_second(monkeypatch, tmp_path):
    assert find_server() == embedded._bundled()
    monkeypatch.setattr(embedded, "_bundled", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedFailed, match="install mcp-task-gateway"):
        find_server()
    for name, version in (("valkey-server", "6.2.1"), ("redis-server", "7.0.15")):
        server = tmp_path / name
        server.write_text(f"#!/bin/sh\necho 'Server v={version} sha=0'\n")
        server.chmod(0o700)
    assert find_server() == str(tmp_path / "redis-server")
    (tmp_path / "redis-server").write_text("#!/bin/sh\necho nothing\n")
    with pytest.raises(EmbeddedFailed):
        find_server()


def test_a_stale_pid_file_tells_nothing(directory, tmp_path):
    assert Embedded(Path(tmp_path)).pid() is None
    (tmp_path / "server.pid").write_text("x")
    assert Embedded(Path(tmp_path)).pid() is None
