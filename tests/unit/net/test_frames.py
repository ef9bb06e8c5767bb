"""Cutting bytes into frames, whatever pieces they come in."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import ProtocolError
from kclient.memory_ledger import process_memory
from kclient.net.frames import FIRST_ROOM, FrameAssembler
from kclient.net.receive_buffers import PATIENCE, receive_buffers


def encoded(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def receive(assembler: FrameAssembler, data: bytes, most: int | None = None) -> None:
    """As a socket would: into the target, as much as fits."""
    position = 0
    while position < len(data):
        target = assembler.target()
        count = min(len(target), len(data) - position, most or len(data))
        target[:count] = data[position : position + count]
        assembler.received(count)
        position += count


def body(size: int) -> bytes:
    return (size.to_bytes(4, "big") * (size // 4 + 1))[:size]


# Frames beyond 256 KiB do not fit into the buffer that connections share.
FRAMES = st.lists(st.integers(0, 50) | st.integers(262_130, 262_160) | st.just(600_000), max_size=8)
PIECES = st.lists(st.integers(1, 20) | st.integers(1000, 300_000), min_size=1, max_size=20)


def pieces(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    """Cut up; the sizes are used again and again, the small ones only for the first thousand pieces."""
    position = turn = 0
    while position < len(data):
        size = sizes[turn % len(sizes)] if turn < 1000 else 100_000
        yield data[position : position + size]
        position, turn = position + size, turn + 1


@given(lengths=FRAMES, sizes=PIECES)
def test_any_pieces_received(lengths: list[int], sizes: list[int]) -> None:
    frames = [body(length) for length in lengths]
    assembler = FrameAssembler(first_room=1)
    for piece in pieces(encoded(frames), sizes):
        receive(assembler, piece)
    assert [bytes(frame) for frame in assembler.take()] == frames
    assert assembler.idle
    assert assembler.take() == []


@given(lengths=FRAMES, sizes=PIECES, kind=st.sampled_from([bytes, bytearray]))
def test_any_pieces_fed(lengths: list[int], sizes: list[int], kind: type[bytes | bytearray]) -> None:
    frames = [body(length) for length in lengths]
    assembler = FrameAssembler(first_room=1)
    for piece in pieces(encoded(frames), sizes):
        assembler.feed(kind(piece))
    assert [bytes(frame) for frame in assembler.take()] == frames
    assert assembler.idle


def trusting() -> FrameAssembler:
    """As clients have it."""
    return FrameAssembler(first_room=64 * 1024 * 1024)


def test_frames_are_writable_and_independent() -> None:
    assembler = FrameAssembler()
    receive(assembler, encoded([b"first", b"second"]))
    first, second = assembler.take()
    first[:] = b"FIRST"
    receive(assembler, encoded([b"third"]))
    assert (bytes(first), bytes(second)) == (b"FIRST", b"second")


def test_a_whole_frame_is_adopted() -> None:
    assembler = FrameAssembler()
    data = bytearray(encoded([b"x" * 100]))
    assembler.feed(data)
    (frame,) = assembler.take()
    assert frame.obj is data


def test_large_frame_is_received_in_place() -> None:
    assembler = trusting()
    size = 1_000_000
    receive(assembler, size.to_bytes(4, "big"))
    target = assembler.target()
    assert len(target) == size
    target[:] = b"y" * size
    assembler.received(size)
    (frame,) = assembler.take()
    assert frame.obj is target.obj
    assert bytes(frame) == b"y" * size


@pytest.mark.parametrize("start", [b"", b"start"])
def test_announcing_takes_little_memory(start: bytes) -> None:
    """Who announces 100 MB and sends nothing must not cost 100 MB."""
    tracemalloc.start()
    try:
        assemblers = [FrameAssembler() for _ in range(100)]
        for assembler in assemblers:
            receive(assembler, (100 * 1024 * 1024).to_bytes(4, "big") + start)
            assembler.target()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 100 * 80 * 1024
    assert f"after {len(start)} of the 104857600 bytes" in assemblers[0].pending


@pytest.mark.parametrize("piece", [1000, 100_000, 262_144])
def test_the_room_is_at_most_four_times_what_has_arrived(piece: int) -> None:
    assembler = FrameAssembler()
    size = 3_000_000
    receive(assembler, size.to_bytes(4, "big"))
    arrived = 0
    while arrived < size:
        room = len(assembler.target()) + arrived
        assert room <= min(size, max(FIRST_ROOM, 4 * arrived))
        count = min(piece, room - arrived)
        assembler.received(count)
        arrived += count
    assert len(assembler.take()[0]) == size


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "TLS"),
        (b"\x7f\xff\xff\xff", "2147483647"),
        (b"\xff\xff\xff\xff", "-1"),
    ],
)
@pytest.mark.parametrize("piece", [1, 100])
def test_garbage(start: bytes, reason: str, piece: int) -> None:
    assembler = FrameAssembler()
    receive(assembler, encoded([b"good"]))
    with pytest.raises(ProtocolError, match=reason):
        receive(assembler, start, piece)
    assert [bytes(frame) for frame in assembler.take()] == [b"good"]


def test_limit_is_inclusive() -> None:
    assembler = FrameAssembler(10)
    receive(assembler, encoded([b"x" * 10]))
    assert len(assembler.take()[0]) == 10
    with pytest.raises(ProtocolError, match="limit is 10"):
        receive(assembler, encoded([b"x" * 11]))


def test_where_it_stands() -> None:
    assembler = FrameAssembler()
    assert assembler.idle
    assert assembler.pending == "between two frames"
    receive(assembler, b"\0\0")
    assert not assembler.idle
    assert "2 of the 4 bytes" in assembler.pending
    receive(assembler, b"\0\5abc")
    assert not assembler.idle
    assert "3 of the 5 bytes" in assembler.pending


def test_a_frame_of_which_the_beginning_was_fed_is_adopted() -> None:
    assembler = trusting()
    data = bytearray((300_000).to_bytes(4, "big") + body(300_000))
    assembler.feed(memoryview(data)[:5])
    assert not assembler.adopt(data[:-1], 5)
    assert not assembler.adopt(data, 6)
    assert assembler.adopt(data, 5)
    assert not assembler.adopt(data, 5)
    (frame,) = assembler.take()
    assert frame.obj is data
    assert frame == body(300_000)
    assert assembler.idle
    assert assembler.received_bytes == 300_004


def large_frame(assembler: FrameAssembler, size: int) -> memoryview:
    receive(assembler, size.to_bytes(4, "big") + body(size))
    (frame,) = assembler.take()
    assert bytes(frame) == body(size)
    return frame


@pytest.mark.parametrize("size", [300_000, 3_000_000])
def test_a_large_buffer_is_used_again_when_nobody_looks_at_it(size: int) -> None:
    receive_buffers().clear()
    assembler = trusting()
    first = large_frame(assembler, size)
    buffer, part = id(first.obj), first[5:10]
    assert buffer in map(id, receive_buffers()._buffers)
    second = large_frame(assembler, size)
    assert id(second.obj) != buffer, "the first frame is still held"
    del first
    third = large_frame(assembler, size)
    assert id(third.obj) != buffer, "a part of the first frame is still held"
    assert bytes(part) == body(size)[5:10]
    del part
    assert id(large_frame(assembler, size).obj) == buffer
    assert id(large_frame(trusting(), size - 10_000).obj) == buffer, "by any connection of the thread"


@pytest.mark.slow
def test_a_small_frame_holds_no_large_buffer() -> None:
    receive_buffers().clear()
    assembler = trusting()
    buffer = id(large_frame(assembler, 30_000_000).obj)
    assert id(large_frame(assembler, 30_000_000).obj) == buffer
    assert len(large_frame(assembler, 2_000_000).obj) < 4_000_000


@pytest.mark.slow
@pytest.mark.anyio
async def test_large_buffers_count_with_what_the_process_keeps() -> None:
    receive_buffers().clear()
    memory = process_memory()
    part = memory.part(64 << 20)
    buffer = id(large_frame(trusting(), 3_000_000).obj)
    (account,) = [each for each in memory.accounts() if each.name == "receive buffers"]
    assert account.held == 3 << 20
    assert id(large_frame(trusting(), 3_000_000).obj) == buffer
    assert account.held == 3 << 20
    frames = [large_frame(trusting(), 3_000_000) for _ in range(3)]
    assert account.held == 6 << 20, "an eighth is for them, those in use too"
    large_frame(trusting(), 9_000_000)
    assert account.held <= 8 << 20
    logs = part.account("logs")
    large_frame(trusting(), 3_000_000)
    assert memory.relieve()
    assert account.held == 0
    assert all(bytes(frame) == body(3_000_000) for frame in frames)
    logs.add(60 << 20)
    assert len(large_frame(trusting(), 3_000_000).obj) == 3_000_000, "whoever holds it counts no more"
    assert account.held == 0, "no more than half of what nobody needs"
    part.close()
    large_frame(trusting(), 100_000_000)
    assert account.held > 90 << 20, "a client by itself has its own limit only"
    receive_buffers().clear()
    assert account.held == 0


def test_large_buffers_count_with_the_loop_that_runs() -> None:
    memory = process_memory()

    async def receive_one() -> None:
        large_frame(trusting(), 3_000_000)
        assert [each.held for each in memory.accounts()] == [3 << 20]

    for backend in ("asyncio", "trio", "asyncio"):
        receive_buffers().clear()
        anyio.run(receive_one, backend=backend)
    assert memory.relieve(), "that loop has ended"
    assert not memory.accounts()
    large_frame(trusting(), 3_000_000)
    assert not memory.accounts(), "none runs"
    receive_buffers().clear()


@pytest.mark.parametrize("backend", ["asyncio", "trio", None])
def test_large_buffers_of_an_earlier_loop_are_none_of_the_next(backend: str | None) -> None:
    """If it has no room for them they would count nowhere, and nobody could have them given up."""
    receive_buffers().clear()
    memory = process_memory()

    async def receive_one() -> None:
        large_frame(trusting(), 3_000_000)

    async def receive_where_there_is_no_room() -> None:
        part = memory.part(64 << 20)
        logs = part.account("logs")
        logs.add(60 << 20)
        large_frame(trusting(), 3_000_000)
        assert not receive_buffers()._buffers
        part.close()

    if backend is None:
        large_frame(trusting(), 3_000_000)
    else:
        anyio.run(receive_one, backend=backend)
    assert len(receive_buffers()._buffers) == 1
    anyio.run(receive_where_there_is_no_room, backend="trio")
    receive_buffers().clear()


@pytest.mark.slow
def test_large_buffers_are_given_back() -> None:
    receive_buffers().clear()
    assembler = trusting()
    tracemalloc.start()
    held = [large_frame(assembler, 20_000_000) for _ in range(8)]
    assert tracemalloc.get_traced_memory()[0] > 150_000_000
    held.clear()
    kept = tracemalloc.get_traced_memory()[0]
    assert 20_000_000 < kept < 140_000_000
    for _ in range(PATIENCE):
        receive(assembler, encoded([b"small"]))
        assembler.take()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 1_000_000
