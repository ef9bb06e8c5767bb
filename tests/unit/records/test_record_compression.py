"""The four compressions: levels, other writers' framings, damage, and bombs."""

from __future__ import annotations

import gzip
import pickle
import random
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import ConfigError, CorruptRecordError, RecordTooLargeError
from kclient.records import HEADER_SIZE, CompressionType, check_level
from kclient.records.compression import LEVELS, compress, decompress, decompressed_pieces
from kclient.records.old_lz4 import break_checksum, xxh32
from tests.example_budget import examples
from tests.unit.records.faces import Face, build

REAL = list(CompressionType)[1:]
TEXT = b"The quick brown fox jumps over the lazy dog. " * 5000


@pytest.mark.parametrize("compression", REAL)
@given(data=st.binary(max_size=2000), repeat=st.integers(1, 50))
def test_round_trip(compression: CompressionType, data: bytes, repeat: int) -> None:
    data *= repeat
    assert decompress(compression, compress(compression, data)) == data
    assert decompress(compression, memoryview(compress(compression, memoryview(data)))) == data


@pytest.mark.parametrize("compression", [c for c in REAL if c in LEVELS])
def test_levels(compression: CompressionType) -> None:
    least, greatest, default = LEVELS[compression]
    for level in {max(least, -50), 1, default, greatest, None}:
        assert check_level(compression, level) == level
        assert decompress(compression, compress(compression, TEXT, level)) == TEXT
    for level in (least - 1, greatest + 1):
        if level != default:
            with pytest.raises(ConfigError, match=f"compression.{compression.name.lower()}.level"):
                check_level(compression, level)
    words = b" ".join(random.Random(1).choices([b"alpha", b"beta", b"gamma", b"delta", b"epsilon"], k=20_000))
    assert len(compress(compression, words, greatest)) < len(compress(compression, words, 1))
    assert compress(compression, TEXT, default) == compress(compression, TEXT)


def test_default_level_of_lz4_is_the_fast_one() -> None:
    assert compress(CompressionType.LZ4, TEXT) == compress(CompressionType.LZ4, TEXT, 9)


def test_lz4_frames_are_such_as_java_reads() -> None:
    info = lz4.frame.get_frame_info(compress(CompressionType.LZ4, TEXT))
    assert not info["block_linked"]
    assert info["block_size"] == 64 * 1024
    assert info["content_size"] == 0


def test_snappy_framing_is_that_of_java() -> None:
    data = compress(CompressionType.SNAPPY, TEXT)
    assert data[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    first = int.from_bytes(data[16:20], "big")
    assert snappy.uncompress(data[20 : 20 + first]) == TEXT[: 32 * 1024]


@pytest.mark.parametrize(
    ("compression", "data"),
    [
        (CompressionType.GZIP, gzip.compress(TEXT)),
        (CompressionType.GZIP, gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:])),
        (CompressionType.SNAPPY, snappy.compress(TEXT)),
        (
            CompressionType.SNAPPY,
            compress(CompressionType.SNAPPY, TEXT[:9]) + compress(CompressionType.SNAPPY, TEXT[9:]),
        ),
        (CompressionType.LZ4, lz4.frame.compress(TEXT, content_checksum=True, block_checksum=True)),
        (CompressionType.LZ4, lz4.frame.compress(TEXT[:9]) + lz4.frame.compress(TEXT[9:])),
        (CompressionType.ZSTD, zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(TEXT)),
        (CompressionType.ZSTD, zstandard.compress(TEXT[:9]) + zstandard.compress(TEXT[9:])),
    ],
    # not by their bytes: gzip's say when they were made, and processes that share the tests have to call each the same
    ids=["gzip", "gzip twice", "snappy", "snappy twice", "lz4", "lz4 twice", "zstd", "zstd twice"],
)
def test_what_others_write(compression: CompressionType, data: bytes) -> None:
    assert decompress(compression, data) == TEXT


@pytest.mark.parametrize("compression", REAL)
def test_limit(compression: CompressionType) -> None:
    data = compress(compression, TEXT)
    assert decompress(compression, data, len(TEXT)) == TEXT
    for limit in (len(TEXT) - 1, 1000, 0):
        with pytest.raises(RecordTooLargeError, match=f"more than {limit} bytes"):
            decompress(compression, data, limit)


@pytest.mark.parametrize("compression", REAL)
def test_truncated(compression: CompressionType) -> None:
    data = compress(compression, TEXT[:300])
    for length in range(len(data)):
        try:
            result = decompress(compression, data[:length])
        except CorruptRecordError:
            continue
        assert result == b"", "a truncated stream was taken for a whole one"


@pytest.mark.parametrize("compression", REAL)
def test_garbage(compression: CompressionType) -> None:
    maker = random.Random(7)
    good = compress(compression, TEXT[:300])
    for _ in range(2000):
        data = bytearray(good if maker.random() < 0.9 else maker.randbytes(40))
        for _ in range(maker.randrange(1, 4)):
            data[maker.randrange(len(data))] = maker.randrange(256)
        with suppress(CorruptRecordError, RecordTooLargeError):
            decompress(compression, data[: maker.randrange(len(data) + 1)], 100_000)


LARGE = 16 << 20
# made when they are needed: that takes longer than to find all tests of the file
BOMBS: list[tuple[CompressionType, Callable[[], bytes]]] = [
    (CompressionType.GZIP, lambda: gzip.compress(bytes(LARGE))),
    (CompressionType.LZ4, lambda: lz4.frame.compress(bytes(LARGE))),
    (CompressionType.ZSTD, lambda: zstandard.compress(bytes(LARGE))),
    (CompressionType.SNAPPY, lambda: snappy.compress(bytes(LARGE))),
    # headers that lie: four gigabytes from a few bytes
    (CompressionType.SNAPPY, lambda: b"\xff\xff\xff\xff\x0f" + b"\0" * 20),
    (CompressionType.ZSTD, lambda: b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\x7f" + b"\0" * 20),
]


@pytest.mark.parametrize(("compression", "bomb"), BOMBS)
def test_bombs_cost_no_more_than_the_limit(face: Face, compression: CompressionType, bomb: Callable[[], bytes]) -> None:
    batch = bytearray(build(face, [(1, None, b"", [])], compression=compression)[:HEADER_SIZE]) + bomb()
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[7] = 9
    tracemalloc.start()
    try:
        with pytest.raises((RecordTooLargeError, CorruptRecordError), match="offset 9"):
            face.decode_records(batch, "t", 0, check_crcs=False, max_decompressed=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


MEMORY_LIMIT = 16 << 20
MEASURE = """
import pickle, resource, sys
from kclient.errors import CorruptRecordError, RecordTooLargeError
from kclient.records import CompressionType
from kclient.records.compression import compress, decompress

limit, compression, bomb = pickle.load(sys.stdin.buffer)
decompress(compression, compress(compression, b"x" * 1000))
unit = 1 if sys.platform == "darwin" else 1024
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(compression, bomb, limit)
except (CorruptRecordError, RecordTooLargeError) as error:
    print(type(error).__name__, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit)
"""
"""Prints how much memory the process has had at most beyond what it had before, by allocators of C code too."""


def zstd_bomb(*, window: int | None, content: int | None, runs: int = 2000) -> bytes:
    """A frame of 128 KiB of zeros so many times, and one; without a window it is one segment of the size it claims."""
    descriptor = (0xC0 if content is not None else 0) | (0x20 if window is None else 0)
    front = b"\x28\xb5\x2f\xfd" + bytes([descriptor])
    front += b"" if window is None else bytes([(window - 10) << 3])
    front += b"" if content is None else content.to_bytes(8, "little")
    run = (128 * 1024 << 3 | 2).to_bytes(3, "little") + b"\0"
    return front + run * runs + (1 << 3 | 3).to_bytes(3, "little") + b"\0"


def lz4_bomb() -> bytes:
    frame = bytearray(lz4.frame.compress(bytes(64 << 20), store_size=True))
    frame[6:14] = (1 << 60).to_bytes(8, "little")
    frame[14] = xxh32(bytes(frame[4:14])) >> 8 & 0xFF
    return bytes(frame)


def xerial(*blocks: bytes) -> bytes:
    return b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


FOUR_GB = b"\xff\xff\xff\xff\x0f" + b"\0" * 20
MEASURED = {
    "zstd, one segment of 2**60": (
        CompressionType.ZSTD,
        zstd_bomb(window=None, content=1 << 60),
        1,
        "RecordTooLargeError",
    ),
    "zstd, 2**60": (CompressionType.ZSTD, zstd_bomb(window=27, content=1 << 60), 1, "RecordTooLargeError"),
    # Its window is beside what was decompressed so far, and no larger.
    "zstd, no size": (CompressionType.ZSTD, zstd_bomb(window=27, content=None), 2, "RecordTooLargeError"),
    "zstd, a window of 2 GiB": (CompressionType.ZSTD, zstd_bomb(window=31, content=None), 1, "CorruptRecordError"),
    "zstd, behind a good frame": (
        CompressionType.ZSTD,
        zstandard.compress(b"x") + zstd_bomb(window=17, content=1 << 60),
        1,
        "RecordTooLargeError",
    ),
    "gzip": (CompressionType.GZIP, gzip.compress(bytes(64 << 20)), 1, "RecordTooLargeError"),
    "snappy, 4 GB": (CompressionType.SNAPPY, FOUR_GB, 1, "RecordTooLargeError"),
    "snappy, as much as may be": (CompressionType.SNAPPY, b"\x80\x80\x80\x08" + b"\0" * 20, 1, "CorruptRecordError"),
    "xerial, a block of 4 GB": (CompressionType.SNAPPY, xerial(FOUR_GB), 1, "RecordTooLargeError"),
    "xerial, many blocks": (
        CompressionType.SNAPPY,
        xerial(*[snappy.compress(bytes(1 << 20))] * 64),
        1,
        "RecordTooLargeError",
    ),
    "xerial, an absurd length": (
        CompressionType.SNAPPY,
        xerial()[:16] + b"\x7f\xff\xff\xff" + b"x" * 99,
        1,
        "CorruptRecordError",
    ),
    "lz4, 2**60": (CompressionType.LZ4, lz4_bomb(), 1, "RecordTooLargeError"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_memory_stays_near_the_limit(name: str) -> None:
    pytest.importorskip("resource")
    compression, bomb, times, error = MEASURED[name]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE],
        input=pickle.dumps((MEMORY_LIMIT, compression, bomb)),
        capture_output=True,
        timeout=60,
        check=True,
    )
    kind, peak = done.stdout.decode().split()
    assert kind == error
    assert int(peak) < times * MEMORY_LIMIT + (4 << 20)


@pytest.mark.slow
def test_zstd_frames_of_one_segment_may_be_as_large_as_the_limit() -> None:
    """Their window is as large as they are, and zstd by itself allows 128 MiB."""
    size = 1025 * (128 << 10) + 1
    frame = zstd_bomb(window=None, content=size, runs=1025)
    assert len(decompress(CompressionType.ZSTD, frame, size)) == size
    with pytest.raises(RecordTooLargeError, match=f"more than {size - 1} bytes"):
        decompress(CompressionType.ZSTD, frame, size - 1)


def streams(compression: CompressionType, data: bytes) -> bytes:
    if compression is CompressionType.LZ4:
        return lz4.frame.compress(data, store_size=False)  # type: ignore[no-any-return]
    return gzip.compress(data) if compression is CompressionType.GZIP else zstandard.compress(data)


@pytest.mark.parametrize("compression", [CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD])
@given(sizes=st.lists(st.sampled_from([0, 1, 700, 3000, 70_000]), min_size=1, max_size=8), cut=st.integers(0, 10**6))
@examples(60)
def test_streams_one_behind_another(compression: CompressionType, sizes: list[int], cut: int) -> None:
    noise = random.Random(3)
    parts = [noise.randbytes(size) for size in sizes]
    packed = [streams(compression, part) for part in parts]
    data = b"".join(packed)
    assert decompress(compression, data) == b"".join(parts)
    with pytest.raises(CorruptRecordError):
        decompress(compression, data + b"\x01\x02")
    cut %= len(data)
    ends = {len(b"".join(packed[:n])): n for n in range(len(packed))}
    if cut in ends:
        assert decompress(compression, data[:cut]) == b"".join(parts[: ends[cut]])
    else:
        with pytest.raises(CorruptRecordError):
            decompress(compression, data[:cut])
    if sum(sizes):
        with pytest.raises(RecordTooLargeError):
            decompress(compression, data, sum(sizes) - 1)


@given(st.lists(st.tuples(st.sampled_from([0, 5, 70_000, 2_500_000]), st.booleans()), max_size=4))
@examples(40)
def test_lz4_frames_of_v0_one_behind_another(made: list[tuple[int, bool]]) -> None:
    frames = [(streams(CompressionType.LZ4, b"x" * size), broken) for size, broken in made]
    data = b"".join(break_checksum(frame) if broken else frame for frame, broken in frames)
    assert decompress(CompressionType.LZ4, data, ignore_lz4_checksum=True) == b"x" * sum(size for size, _ in made)


@pytest.mark.slow
@pytest.mark.parametrize("of_v0", [False, True])
@pytest.mark.parametrize("compression", [CompressionType.GZIP, CompressionType.LZ4])
def test_many_streams_that_hold_nothing(compression: CompressionType, of_v0: bool) -> None:
    empty = streams(compression, b"")
    if of_v0 and compression is CompressionType.LZ4:
        empty = break_checksum(empty)
    tail = b"".join(streams(compression, random.Random(4).randbytes(1 << 20)) for _ in range(8))

    def seconds(data: bytes, size: int) -> float:
        began = time.thread_time()
        assert len(decompress(compression, data, ignore_lz4_checksum=of_v0)) == size
        return time.thread_time() - began

    # Were what is behind each of them copied, these would be 32 GB.
    assert seconds(empty * 4000 + tail, 8 << 20) < 10 * seconds(tail, 8 << 20) + 1
    assert decompress(compression, empty * 4096, ignore_lz4_checksum=of_v0) == b""
    with pytest.raises(CorruptRecordError, match="more than 4096 streams"):
        decompress(compression, empty * 4097, ignore_lz4_checksum=of_v0)


def zstd_frame(data: bytes, *, checksum: bool, size: bool) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, write_checksum=checksum, write_content_size=size)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(data)


@given(
    parts=st.lists(st.sampled_from([b"", b"a", b"b" * 300_000, random.Random(3).randbytes(140_000)]), max_size=3),
    checksum=st.booleans(),
    size=st.booleans(),
    skipped=st.booleans(),
    cut=st.integers(0),
)
def test_zstd_frames_that_do_not_end(parts: list[bytes], checksum: bool, size: bool, skipped: bool, cut: int) -> None:
    """Whatever is cut off at the end, the rest is whole frames, or an error: never fewer bytes than were there."""
    frames = [zstd_frame(part, checksum=checksum, size=size) for part in parts]
    if skipped:
        frames.insert(0, b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip")
        parts = [b"", *parts]
    data = b"".join(frames)
    assert decompress(CompressionType.ZSTD, data) == b"".join(parts)
    left = data[: len(data) - cut % (len(data) + 1)]
    whole = {len(b"".join(frames[:number])): b"".join(parts[:number]) for number in range(len(frames) + 1)}
    if len(left) in whole:
        assert decompress(CompressionType.ZSTD, left) == whole[len(left)]
    else:
        with pytest.raises(CorruptRecordError):
            decompress(CompressionType.ZSTD, left)


@pytest.mark.parametrize("data", [b"a" * 50, TEXT], ids=["little", "much"])
def test_a_zstd_frame_that_was_flushed_and_not_ended(data: bytes) -> None:
    """All records come out of it, and Java's consumers and librdkafka read none."""
    compressor = zstandard.ZstdCompressor().compressobj()
    made = compressor.compress(data) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    with pytest.raises(CorruptRecordError, match="zstd cannot decompress the records: the data end too early"):
        decompress(CompressionType.ZSTD, made)


LZ4_FRAMES = {
    "ours": (compress(CompressionType.LZ4, TEXT), ""),
    "with its size": (lz4.frame.compress(TEXT, block_linked=False), ""),
    "with checksums": (lz4.frame.compress(TEXT, block_linked=False, block_checksum=True, content_checksum=True), ""),
    "large blocks": (lz4.frame.compress(TEXT, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB), ""),
    "linked, one block": (lz4.frame.compress(b"a" * 50, block_linked=True), ""),  # lz4 leaves the link out then
    "linked": (
        lz4.frame.compress(TEXT, block_linked=True, block_size=lz4.frame.BLOCKSIZE_MAX64KB),
        "blocks that depend on each other",
    ),
    "two": (lz4.frame.compress(TEXT, block_linked=False) + lz4.frame.compress(b"b", block_linked=False), "follow the"),
    "an empty one first": (lz4.frame.compress(b"") + lz4.frame.compress(TEXT, block_linked=False), "follow the"),
    "a skipped one first": (b"\x50\x2a\x4d\x18\x01\x00\x00\x00s" + compress(CompressionType.LZ4, TEXT), "begin with"),
    "a skipped one behind": (compress(CompressionType.LZ4, TEXT) + b"\x50\x2a\x4d\x18\x01\x00\x00\x00s", "follow the"),
    "none": (b"", "begin with"),
    "a beginning": (b"\x04\x22\x4d\x18", "begin with"),
}


@pytest.mark.parametrize(("data", "problem"), LZ4_FRAMES.values(), ids=LZ4_FRAMES)
def test_one_lz4_frame_that_java_reads(data: bytes, problem: str) -> None:
    """Who keeps batches for others takes no more than this; who reads takes what brokers may hold."""
    if problem:
        with pytest.raises(CorruptRecordError, match=problem):
            list(decompressed_pieces(CompressionType.LZ4, data, one_lz4_frame=True))
    else:
        assert b"".join(decompressed_pieces(CompressionType.LZ4, data, one_lz4_frame=True)) == decompress(
            CompressionType.LZ4, data
        )
    if len(data) > 4:
        assert len(decompress(CompressionType.LZ4, data)) >= 50


def test_small_snappy_block_that_claims_much() -> None:
    with pytest.raises(CorruptRecordError, match="claims to hold"):
        decompress(CompressionType.SNAPPY, b"\xff\xff\xff\x7f" + b"\0" * 20)
