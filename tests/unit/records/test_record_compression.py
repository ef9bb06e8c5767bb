"""The four compressions: levels, other writers' framings, damage, and bombs."""

from __future__ import annotations

import gzip
import random
import time
import tracemalloc
import zlib
from contextlib import suppress
from typing import Any

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import ConfigError, CorruptRecordError, RecordTooLargeError
from kclient.records import HEADER_SIZE, CompressionType, check_level
from kclient.records.compression import LEVELS, compress, decompress
from kclient.records.old_lz4 import break_checksum
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
        assert len(result) < 300, "a truncated stream was taken for the whole"


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


def bombs() -> list[Any]:
    zeros = bytes(1 << 20)
    gzipped = zlib.compressobj(9, zlib.DEFLATED, 31)
    return [
        (CompressionType.GZIP, b"".join([*(gzipped.compress(zeros) for _ in range(64)), gzipped.flush()])),
        (CompressionType.LZ4, lz4.frame.compress(zeros * 64)),
        (CompressionType.ZSTD, zstandard.compress(zeros * 64)),
        (CompressionType.SNAPPY, snappy.compress(zeros * 64)),
        # headers that lie: four gigabytes from a few bytes
        (CompressionType.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\0" * 20),
        (CompressionType.ZSTD, b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\x7f" + b"\0" * 20),
    ]


@pytest.mark.parametrize(("compression", "bomb"), bombs())
def test_bombs_cost_no_more_than_the_limit(face: Face, compression: CompressionType, bomb: bytes) -> None:
    batch = bytearray(build(face, [(1, None, b"", [])], compression=compression)[:HEADER_SIZE]) + bomb
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[7] = 9
    tracemalloc.start()
    try:
        with pytest.raises((RecordTooLargeError, CorruptRecordError), match="offset 9"):
            face.decode_records(batch, "t", 0, check_crcs=False, max_decompressed=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


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
    elif compression is not CompressionType.ZSTD:  # whose records are then fewer than the batch's header says
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


def test_small_snappy_block_that_claims_much() -> None:
    with pytest.raises(CorruptRecordError, match="claims to hold"):
        decompress(CompressionType.SNAPPY, b"\xff\xff\xff\x7f" + b"\0" * 20)
