"""Streams of every kind carry frames of every size, in order, both ways; their ends are told apart."""

from __future__ import annotations

import errno
import itertools
import socket
from collections.abc import Callable, Iterable
from random import Random
from typing import cast

import anyio
import anyio.lowlevel
import pytest

from kclient.concurrency import Supervisor
from kclient.errors import IllegalStateError, ProtocolError
from kclient.net.channel import Channel, TruncatedError
from kclient.net.channel_kinds import open_channel
from kclient.net.frames import FrameAssembler
from kclient.net.socket_io import READ_SHARE
from kclient.net.streams import (
    FAIR_SHARE,
    ByteStream,
    MemoryStream,
    SocketStream,
    buffer_size,
    memory_pair,
    socketpair_streams,
)
from kclient.testing.faults import FaultyStream

from .links import LINKS, Recorder, supervised

pytestmark = pytest.mark.anyio

KINDS = sorted(LINKS)


def frame(body: bytes) -> list[bytes]:
    return [len(body).to_bytes(4, "big"), body]


def two(kind: str, supervisor: Supervisor) -> tuple[Channel, Recorder, Channel, Recorder]:
    left, right = LINKS[kind]()
    mine, theirs = Recorder(), Recorder()
    return open_channel(left, mine, supervisor), mine, open_channel(right, theirs, supervisor), theirs


@pytest.mark.parametrize("kind", KINDS)
async def test_frames_arrive_in_order(kind: str) -> None:
    small = kind.startswith("chopped")
    bodies = [
        b"",
        b"a",
        b"bc" * 50,
        *(str(i).encode() for i in range(300)),
        b"x" * (2000 if small else 3_000_000),
        b"end",
    ]
    async with supervised() as supervisor:
        left, mine, right, theirs = two(kind, supervisor)
        for body in bodies:
            left.write(frame(body))
            right.write(frame(body[::-1]))
        await theirs.until(lambda: len(theirs.frames) == len(bodies))
        await mine.until(lambda: len(mine.frames) == len(bodies))
        assert theirs.frames == bodies
        assert mine.frames == [body[::-1] for body in bodies]
        await mine.until(lambda: left.pending_bytes == 0)
        left.close()
        await theirs.until(lambda: theirs.causes)
        assert mine.causes == [None]
        assert theirs.causes == [None]
        await left.wait_closed()
        await right.wait_closed()


@pytest.mark.parametrize("kind", ["memory", "socketpair", "tcp"])
async def test_one_wake_takes_all_that_is_ready(kind: str) -> None:
    async with supervised() as supervisor:
        left, _, _, theirs = two(kind, supervisor)
        left.write([part for i in range(200) for part in frame(b"%d" % i)])
        await theirs.until(lambda: len(theirs.frames) == 200)
        assert theirs.wakes == 1
        left.close()
        await theirs.until(lambda: theirs.causes)


@pytest.mark.parametrize("kind", ["memory", "socketpair", "tcp"])
async def test_writing_never_waits_and_is_drained(kind: str) -> None:
    body = b"z" * 1_000_000
    async with supervised() as supervisor:
        left, mine, right, theirs = two(kind, supervisor)
        right.pause()
        for _ in range(12):
            left.write(frame(body))
        await anyio.wait_all_tasks_blocked()
        assert left.pending_bytes > 0
        assert mine.drained == 0
        right.resume()
        await theirs.until(lambda: len(theirs.frames) == 12)
        await mine.until(lambda: mine.drained)
        assert left.pending_bytes == 0
        left.close()
        await theirs.until(lambda: theirs.causes)


@pytest.mark.parametrize("kind", ["memory", "socketpair", "tcp"])
async def test_paused_reads_nothing(kind: str) -> None:
    async with supervised() as supervisor:
        left, _, right, theirs = two(kind, supervisor)
        right.pause()
        right.pause()
        await anyio.wait_all_tasks_blocked()
        left.write(frame(b"later"))
        await anyio.sleep(0.01)
        right.poll()
        assert theirs.frames == []
        right.resume()
        right.resume()
        await theirs.until(lambda: theirs.frames == [b"later"])
        right.close()
        left.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_end_inside_of_a_frame(kind: str) -> None:
    async with supervised() as supervisor:
        left, mine, right, theirs = two(kind, supervisor)
        left.write([*frame(b"whole"), b"\0\0\0\x0aonly"])
        await mine.until(lambda: left.pending_bytes == 0)
        left.close()
        await theirs.until(lambda: theirs.causes)
        assert theirs.frames == [b"whole"]
        assert isinstance(theirs.causes[0], TruncatedError)
        assert "after 4 of the 10 bytes of a frame" in str(theirs.causes[0])
        assert right.closed


@pytest.mark.parametrize("kind", KINDS)
async def test_garbage_closes(kind: str) -> None:
    async with supervised() as supervisor:
        left, mine, _, theirs = two(kind, supervisor)
        left.write([*frame(b"good"), b"GET / HTTP/1.1\r\n\r\n"])
        await theirs.until(lambda: theirs.causes)
        assert theirs.frames == [b"good"]
        assert isinstance(theirs.causes[0], ProtocolError)
        await mine.until(lambda: mine.causes)


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_is_told_once(kind: str) -> None:
    async with supervised() as supervisor:
        left, mine, _, theirs = two(kind, supervisor)
        cause = OSError(errno.EIO, "mine")
        left.close(cause)
        left.close()
        left.write(frame(b"dropped"))
        left.pause()
        left.resume()
        left.poll()
        await left.wait_closed()
        assert mine.causes == [cause]
        assert left.pending_bytes == 0
        assert "closed" in repr(left)
        await theirs.until(lambda: theirs.causes)
        assert theirs.frames == []


@pytest.mark.parametrize("kind", ["socketpair", "tcp", "memory"])
async def test_peer_that_went_away_while_writing(kind: str) -> None:
    async with supervised() as supervisor:
        left, mine, right, _ = two(kind, supervisor)
        left.pause()  # so that it learns of the end by writing
        await anyio.wait_all_tasks_blocked()
        right.pause()
        right.close()
        await right.wait_closed()
        with anyio.fail_after(10):
            while not left.closed:
                left.write(frame(b"x" * 100_000))
                await anyio.sleep(0.001)
        assert isinstance(mine.causes[0], OSError) or mine.causes == [None]
        await left.wait_closed()


async def test_owner_that_closes_while_it_is_told() -> None:
    async with supervised() as supervisor:
        for kind in ("memory", "socketpair"):
            left, right = LINKS[kind]()
            theirs = Recorder()
            channel = open_channel(right, theirs, supervisor)
            received = theirs.frames_received

            def close(frames: list[memoryview], channel: Channel = channel, received=received) -> None:  # type: ignore[no-untyped-def]
                received(frames)
                channel.close()

            theirs.frames_received = close  # type: ignore[method-assign]
            await left.send(frame(b"one"))
            await theirs.until(lambda theirs=theirs: theirs.causes)
            assert theirs.frames == [b"one"]
            await left.aclose()


async def test_cancelled_tasks_close_the_stream() -> None:
    """The supervisor ends first: streams are closed all the same, and their owners told."""
    left, right = memory_pair()
    mine = Recorder()
    async with Supervisor() as supervisor:
        open_channel(FaultyStream(left), mine, supervisor)
        await anyio.wait_all_tasks_blocked()
    assert isinstance(mine.causes[0], ConnectionAbortedError)
    assert await right.receive() == b""


@pytest.mark.parametrize("kind", KINDS)
async def test_streams_by_themselves(kind: str) -> None:
    left, right = LINKS[kind]()
    data = bytes(range(256)) * 20
    received = bytearray()

    async def read() -> None:
        while chunk := await right.receive(100_000):
            received.extend(chunk)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await left.send([data[:100], memoryview(data)[100:101], b"", bytearray(data[101:])])
        await left.aclose()
        await left.aclose()
    assert received == data
    await right.aclose()
    with pytest.raises(OSError):
        await left.send([b"x"])
    with pytest.raises(OSError):
        await left.receive()


@pytest.mark.parametrize("kind", ["memory", "socketpair"])
async def test_close_wakes_who_waits(kind: str) -> None:
    left, right = LINKS[kind]()
    problems: list[OSError] = []

    async def read() -> None:
        try:
            await left.receive()
        except OSError as error:
            problems.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        await left.aclose()
    assert len(problems) == 1
    await right.aclose()


async def test_memory_stream_to_nobody() -> None:
    left, right = memory_pair("a", "b", limit=4)
    assert (left.peer, right.peer) == ("a", "b")
    await left.send([b"12345678"])
    blocked = []

    async def send() -> None:
        try:
            await left.send([b"x"])
        except BrokenPipeError as error:
            blocked.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        await anyio.wait_all_tasks_blocked()
        await right.aclose()
    assert len(blocked) == 1
    await left.aclose()
    with pytest.raises(IllegalStateError):
        memory_pair(limit=0)


async def test_kinds_and_sizes() -> None:
    left, right = socketpair_streams("peer")
    assert isinstance(left, ByteStream)
    assert isinstance(left, SocketStream)
    assert left.peer == "peer"
    assert buffer_size([b"ab", bytearray(3), memoryview(b"abcd")]) == 9
    await left.aclose()
    await right.aclose()
    assert isinstance(memory_pair()[0], MemoryStream)
    assert "closed" in repr(left)


class Answering(Recorder):
    """Answers each frame while it is told of it, and closes after the last one if so told."""

    channel: Channel
    closes = False

    def frames_received(self, frames: list[memoryview]) -> None:
        super().frames_received(frames)
        for received in frames:
            self.channel.write(frame(bytes(received)))
            if self.closes and received == b"last":
                self.channel.close()


@pytest.mark.parametrize("kind", ["socketpair", "tcp", "tls"])
@pytest.mark.parametrize("closes", [False, True])
async def test_answers_to_what_came_together_leave_together(kind: str, closes: bool) -> None:
    """One call of the system, or one TLS record, for many small answers; and closing drops none of them."""
    bodies = [b"%d" % number for number in range(100)] + [b"last"]
    async with supervised() as supervisor:
        left, right = LINKS[kind]()
        mine, theirs = Recorder(), Answering()
        theirs.closes = closes
        asking = open_channel(left, mine, supervisor)
        assert isinstance(right, SocketStream)
        flushed = 0
        flush = right.flush

        def counted(parts: object) -> int:
            nonlocal flushed
            flushed += 1
            return flush(parts)  # type: ignore[arg-type]

        right.flush = counted  # type: ignore[method-assign]
        theirs.channel = open_channel(right, theirs, supervisor)
        asking.write([part for body in bodies for part in frame(body)])
        await mine.until(lambda: len(mine.frames) == len(bodies))
        assert mine.frames == bodies
        assert flushed <= theirs.wakes
        assert theirs.channel.pending_bytes == 0
        assert theirs.drained == theirs.wakes
        asking.close()
        theirs.channel.close()
        await asking.wait_closed()
        await theirs.channel.wait_closed()


class Taking:
    """Turns that are taken at once, in which so many bytes may come unasked; frames are asked for."""

    def __init__(self, share: int, *, allowed: bool = True) -> None:
        self.share = share
        self.allowed = allowed
        self.asked: list[tuple[int, int]] = []

    def enter(self) -> bool:
        return True

    def leave(self) -> None:
        pass

    def add(self, job: Callable[[float], bool]) -> None:
        raise AssertionError("it may always enter")

    def progressed(self) -> None:
        pass

    def unasked(self, most: int) -> int:
        return min(most, self.share)

    def garbled(self, error: ProtocolError) -> None:
        raise error

    def admit(self, size: int, here: int) -> bool:
        self.asked.append((size, here))
        return self.allowed


async def test_a_large_frame_in_memory_waits_where_it_is_until_it_may_come() -> None:
    body = b"x" * 3_000_000
    turns = Taking(100_000, allowed=False)
    async with supervised() as supervisor:
        left, right = memory_pair()
        theirs = Recorder()
        channel = open_channel(right, theirs, supervisor, turns=turns, admit=turns.admit)
        assert left.send_nowait(frame(body))
        with anyio.fail_after(20):
            while not turns.asked:
                await anyio.lowlevel.checkpoint()
        assert turns.asked == [(3_000_000, 1)]
        channel.pause()
        assert channel.missing == 2_999_999
        assert channel.arrived(1 << 30) == 2_999_999
        assert not left.send_nowait(frame(b"next")), "the other side may not send on"
        assert not theirs.frames
        channel.admit()
        channel.resume()
        await theirs.until(lambda: theirs.frames)
        assert theirs.frames == [body]
        assert channel.take_admitted() == 3_000_000
        assert channel.received_bytes == 3_000_004
        assert turns.asked == [(3_000_000, 1)]
        assert left.send_nowait(frame(b"next"))
        await theirs.until(lambda: theirs.frames == [body, b"next"])
        left.close()
        await theirs.until(lambda: theirs.causes == [None])


@pytest.mark.parametrize("share", [4096, 10_000, 1 << 20])
async def test_frames_in_memory_arrive_in_order_however_little_comes_at_once(share: int) -> None:
    random = Random(share)
    bodies = [random.randbytes(int(10 ** random.uniform(0, 5.5))) for _ in range(100)]
    sent = b"".join(part for body in bodies for part in frame(body))
    turns = Taking(share)
    async with supervised() as supervisor:
        left, right = memory_pair()
        theirs = Recorder()
        channel = open_channel(right, theirs, supervisor, turns=turns, admit=turns.admit)
        start = 0
        while start < len(sent):
            end = start + int(10 ** random.uniform(0, 6))
            await left.send([sent[start:end]])
            start = end
        for body in bodies:
            await left.send(frame(body))
        await theirs.until(lambda: len(theirs.frames) == 2 * len(bodies))
        assert theirs.frames == bodies + bodies
        assert channel.received_bytes == 2 * len(sent)
        if share < 1 << 20:
            asked = {size for size, _ in turns.asked}
            assert asked >= {len(body) for body in bodies if len(body) + 4 > share}
        left.close()
        await theirs.until(lambda: theirs.causes == [None])


class Trickle:
    """A socket that has a large frame for who reads, in pieces of these sizes."""

    def __init__(self, sizes: Iterable[int]) -> None:
        self.sizes = iter(sizes)
        self.head = (1 << 30).to_bytes(4, "big")
        self.reads = 0

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def recv_into(self, target: memoryview) -> int:
        self.reads += 1
        size = next(self.sizes)
        head, self.head = self.head, b""
        target[: len(head)] = head
        return min(size, len(target))


@pytest.mark.parametrize(
    ("sizes", "reads"), [([500, 1], 1), ([16_383, 1], 1), ([100_000, 20_000, 5_000, 1], 3)], ids=str
)
def test_after_a_large_piece_it_looks_for_more(sizes: list[int], reads: int) -> None:
    trickle = Trickle(sizes)
    assert not SocketStream(cast("socket.socket", trickle), "peer").fill(FrameAssembler(1 << 30))
    assert trickle.reads == reads


def test_a_sender_that_never_stops_does_not_keep_others_from_their_turn() -> None:
    trickle = Trickle(itertools.repeat(100_000))
    assert not SocketStream(cast("socket.socket", trickle), "peer").fill(FrameAssembler(1 << 30))
    assert trickle.reads <= FAIR_SHARE // 16_384


def test_where_connections_take_turns_one_read_brings_no_more_than_its_share() -> None:
    """However much is ready and however large the frame is: reading it takes time in which nothing else happens."""
    size = 12 << 20
    assembler = FrameAssembler(1 << 30, admit=lambda *_: True)
    stream = SocketStream(cast("socket.socket", Trickle(itertools.repeat(size))), "peer")
    for turn in range(1, 12):
        assert not stream.fill(assembler, READ_SHARE)
        assert assembler.received_bytes == turn * READ_SHARE
