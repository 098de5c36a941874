"""Standard streams: whole lines, bounded, whatever the other end does."""

import asyncio
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.edge.standard import _LOG_LINES, _UNWRITTEN_BYTES, LineReader, Lines, LineWriter, LogWriter
from tests.requirements import requirement


def expected(lines, limit):
    return [line if len(line) <= limit else None for line in lines]


@requirement("OWN-STDIO")
@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(0, 200)), st.integers(1, 20))
def test_lines_do_not_depend_on_the_chunks_and_those_that_are_too_long_are_told_once(lines, cuts, limit):
    whole = [line.replace(b"\n", b"") for line in lines]
    text = b"".join(line + b"\n" for line in whole)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    reader = Lines(limit)
    read = [line for start, end in pairwise(places) for line in reader.feed(text[start:end])]
    assert read == expected(whole, limit)
    assert reader.rest() == b""


@requirement("OWN-STDIO", "OWN-LIMITS")
def test_a_line_is_refused_as_soon_as_it_is_too_long_and_nothing_of_it_is_kept():
    reader = Lines(5)
    assert list(reader.feed(b"123")) == []
    assert list(reader.feed(b"456")) == [None]
    for _ in range(10):
        assert list(reader.feed(b"7" * 1000)) == []
        assert (reader._parts, reader.rest()) == ([], b"")
    assert list(reader.feed(b"8\n12345\n")) == [b"12345"]


@pytest.fixture
def pipe():
    """Two descriptors, as files so that they are closed once and not twice."""
    source, sink = os.pipe()
    with os.fdopen(source, "rb", 0) as reading, os.fdopen(sink, "wb", 0) as writing:
        yield reading, writing


async def read_all(reader):
    return [line async for line in reader.lines()]


async def test_lines_are_read_to_the_end_the_last_one_without_its_end_too(pipe):
    reading, writing = pipe
    writing.write(b"1\n\n22\r\n" + b"x" * 11 + b"\n333")
    writing.close()
    assert await read_all(LineReader(reading.fileno(), 10)) == [b"1", b"", b"22\r", None, b"333"]


async def test_a_file_is_read_like_a_pipe(tmp_path):
    path = tmp_path / "messages"
    path.write_bytes(b"1\n2\n")
    with path.open("rb") as file:
        assert await read_all(LineReader(file.fileno(), 10)) == [b"1", b"2"]


async def test_a_descriptor_that_cannot_be_read_ends_at_once(tmp_path):
    with (tmp_path / "written").open("wb") as file:
        assert await read_all(LineReader(file.fileno(), 10)) == []


async def test_a_descriptor_that_others_made_impatient_is_waited_for(pipe):
    reading, writing = pipe
    os.set_blocking(reading.fileno(), False)
    lines = LineReader(reading.fileno(), 10).lines()
    first = asyncio.ensure_future(anext(lines))
    writing.write(b"1\n")
    assert await first == b"1"
    writing.close()
    assert [line async for line in lines] == []


async def test_no_more_is_read_than_is_taken(pipe):
    reading, writing = pipe
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing.fileno(), False)
    lines = LineReader(reading.fileno(), 10).lines()
    writing.write(b"1\n")
    assert await anext(lines) == b"1"
    written = 0
    for _ in range(200):  # far more rounds than chunks are read ahead
        with suppress(BlockingIOError):
            written += writing.write(b"2\n" * 2048) or 0
        await asyncio.sleep(0.001)
    assert written < 200 * 4096 / 4
    reading_on = asyncio.ensure_future(read_all_of(lines))
    writing.close()
    assert await reading_on == written // 2


async def read_all_of(lines):
    return len([line async for line in lines])


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
async def writer(pipe):
    made = LineWriter(pipe[1].fileno())
    made.start()
    return made


async def test_messages_are_written_one_a_line_in_order(pipe, writer):
    await asyncio.gather(*(writer.write(b'{"a":\n%d\r\n}' % number) for number in range(3)))
    await writer.flush()
    assert pipe[0].read(1000) == b'{"a": 0  }\n{"a": 1  }\n{"a": 2  }\n'


@requirement("OWN-STDIO")
async def test_a_reader_that_is_slow_is_waited_for_and_gets_everything(pipe, writer):
    message = b"x" * 300_000
    written = [asyncio.ensure_future(writer.write(message)) for _ in range(10)]
    await until(lambda: writer._unwritten > _UNWRITTEN_BYTES)
    assert not all(one.done() for one in written)
    got = b""
    while len(got) < 10 * (len(message) + 1):
        got += await asyncio.to_thread(pipe[0].read, 2**16)
    await asyncio.gather(*written)
    await writer.flush()
    assert got == (message + b"\n") * 10


async def test_a_writer_that_others_made_impatient_writes_everything(pipe):
    os.set_blocking(pipe[1].fileno(), False)
    writer = LineWriter(pipe[1].fileno())
    writer.start()
    await writer.write(b"y" * 300_000)
    got = b""
    while len(got) < 300_001:
        got += await asyncio.to_thread(pipe[0].read, 2**16)
    assert got == b"y" * 300_000 + b"\n"


@requirement("OWN-STDIO")
async def test_a_reader_that_leaves_is_noticed_before_anything_is_written(pipe, writer):
    pipe[0].close()
    async with asyncio.timeout(10):
        await writer.gone.wait()
    await writer.write(b"1")
    await writer.flush()


async def test_a_reader_that_leaves_sets_those_free_that_wait_to_write(pipe, writer):
    written = [asyncio.ensure_future(writer.write(b"x" * 900_000)) for _ in range(5)]
    await until(lambda: writer._unwritten > _UNWRITTEN_BYTES)
    pipe[0].close()
    async with asyncio.timeout(10):
        await asyncio.gather(*written)
    assert writer.gone.is_set()


async def test_the_end_of_a_socket_is_noticed(writer):
    ours, theirs = socket.socketpair()
    with ours:
        at_socket = LineWriter(ours.fileno())
        at_socket.start()
        await at_socket.write(b"1")
        assert await asyncio.to_thread(theirs.recv, 10) == b"1\n"
        theirs.close()
        async with asyncio.timeout(10):
            await at_socket.gone.wait()


class TestLog:
    def test_lines_are_written_whole(self, pipe):
        log = LogWriter(pipe[1].fileno())
        text = log.text()
        print("one", "z" * 20_000, file=text, flush=True)
        print("two \udc80", file=text, flush=True)
        assert pipe[0].read(4) == b"one "
        rest = b""
        while not rest.endswith(b"two \\udc80\n"):
            rest += pipe[0].read(2**16)
        assert rest == b"z" * 20_000 + b"\ntwo \\udc80\n"
        log.finish(10)
        assert not log._thread.is_alive()

    @requirement("OWN-STDIO")
    def test_nobody_waits_for_a_reader_that_does_not_read_and_what_is_left_out_is_counted(self, pipe):
        log = LogWriter(pipe[1].fileno())
        text = log.text()
        total = 3 * _LOG_LINES
        for number in range(total):
            print(f"{number:>099}", file=text, flush=True)
        lines = []
        reading = os.fdopen(pipe[0].fileno(), "rb", closefd=False)
        while not lines or lines[-1] != b"last\n":
            if len(lines) == _LOG_LINES:
                print("last", file=text, flush=True)
            lines.append(reading.readline())
        told = [json.loads(line) for line in lines if line.startswith(b"{")]
        assert told[0].keys() == {"event", "lines", "level"}
        assert sum(one["lines"] for one in told) + len(lines) - len(told) == total + 1
        log.finish(10)

    def test_a_log_that_nobody_can_read_any_more_disturbs_nobody(self, pipe):
        log = LogWriter(pipe[1].fileno())
        text = log.text()
        pipe[0].close()
        for _ in range(3 * _LOG_LINES):
            print("x", file=text, flush=True)
        log.finish(10)
        assert threading.current_thread() is threading.main_thread()


@requirement("OWN-STDIO")
def test_whoever_prints_or_reads_in_this_process_does_not_meet_the_client():
    program = (
        "import os, sys; from gateway.edge.standard import take_standard_streams as take; source, sink = take();"
        "print('printed', sys.stdin.read(), flush=True); os.write(sink, b'message ' + os.read(source, 9));"
        "os.system('echo child; cat')"
    )
    done = subprocess.run([sys.executable, "-c", program], input=b"question", capture_output=True, check=True)
    assert (done.stdout, done.stderr.split()) == (b"message question", [b"printed", b"child"])
