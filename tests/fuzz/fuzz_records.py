"""Record batches and message sets, read by both implementations to objects and to columns, and converted from each
format into the others: the same records or the same error."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal
from zlib import crc32

from crc32c import crc32c

from kclient.errors import KafkaError
from kclient.records import (
    HEADER_SIZE,
    BatchBuilder,
    CompressionType,
    MessageSetBuilder,
    RecordBatchFraming,
    check_batch,
    encode_end_marker,
    iter_headers,
)
from kclient.records._implementation import load
from kclient.records.arrow import ArrowChunk, ArrowDecoder
from kclient.records.conversion import RecordConverter
from kclient.records.message_header import encode_message
from kclient.records.reader import RecordReader

MAX_DECOMPRESSED = 1 << 20
FRAMING = RecordBatchFraming()


def _implementations() -> list[Any]:
    interpreted = load("interpreted")
    try:
        return [interpreted, load("compiled")]
    except ImportError:  # no C compiler where kclient was installed
        return [interpreted]


READERS = [(RecordReader(loaded), ArrowDecoder(loaded), RecordConverter(loaded)) for loaded in _implementations()]


def check(data: bytes) -> None:
    """The first byte chooses what is asked for, the rest is what a fetch returned."""
    if not data:
        return
    options, buffer = data[0], data[1:]
    if options & 1:
        buffer = with_checksums(buffer)
    wanted: dict[str, Any] = {
        "start_offset": 1 if options & 2 else 0,
        "check_crcs": not options & 4,
        "aborted": [(7, 0)] if options & 8 else None,
        "max_decompressed": MAX_DECOMPRESSED,
    }
    rows = [outcome(partial(_rows, reader, buffer, wanted)) for reader, _, _ in READERS]
    assert all(found == rows[0] for found in rows)
    columns = [outcome(partial(_columns, decoder, buffer, wanted)) for _, decoder, _ in READERS]
    assert all(found == columns[0] for found in columns)
    converted = [outcome(partial(_converted, converter, buffer, options)) for _, _, converter in READERS]
    assert all(found == converted[0] for found in converted)
    if isinstance(converted[0], bytes):
        assert _converted(READERS[0][2], converted[0], options) == converted[0], "nothing is left to be converted"
    outcome(lambda: list(iter_headers(buffer)))
    outcome(lambda: check_batch(buffer))
    _check_framing(buffer)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the type and text of its error if that is one of ours."""
    try:
        return call()
    except KafkaError as error:
        return type(error), str(error)


def _rows(reader: RecordReader, buffer: bytes, wanted: dict[str, Any]) -> list[Any]:
    return [
        (record.offset, record.timestamp, record.timestamp_type, record.key, record.value, record.headers)
        for record in reader.decode_records(buffer, "topic", 0, **wanted)
    ]


def _columns(decoder: ArrowDecoder, buffer: bytes, wanted: dict[str, Any]) -> Any:
    chunk = ArrowChunk("topic", 0, buffer, wanted["start_offset"], None, wanted["aborted"])
    batch = decoder.decode_arrow(
        [chunk], True, check_crcs=wanted["check_crcs"], max_decompressed=wanted["max_decompressed"]
    )
    batch.validate(full=True)
    # Python's datetime has fewer years than a timestamp
    at = batch.schema.get_field_index("timestamp")
    return batch.set_column(at, "timestamp", batch.column(at).cast("int64")).to_pydict()


def _converted(converter: RecordConverter, buffer: bytes, options: int) -> bytes:
    format_: Literal[0, 1, 2] = (0, 1, 2)[(options >> 4) % 3]
    convert = converter.up_convert if options & 0x40 else converter.down_convert
    return convert(buffer, format_, check_crcs=not options & 4, max_decompressed=MAX_DECOMPRESSED)


def _check_framing(buffer: bytes) -> None:
    """What `verify` accepts can be measured and inspected."""
    try:
        length = FRAMING.measure(buffer)
        info = FRAMING.inspect(buffer)
    except ValueError:
        assert not FRAMING.verify(buffer)
        return
    assert info.length == length >= HEADER_SIZE
    if FRAMING.verify(buffer):
        assert info.first <= info.last + 1


def with_checksums(buffer: bytes | bytearray) -> bytes:
    """The batches with the checksums that they should have, so that what lies behind the checksum is reached too."""
    stamped = bytearray(buffer)
    position = 0
    while position + 17 <= len(stamped):
        end = position + 12 + int.from_bytes(stamped[position + 8 : position + 12], "big")
        if not position + 17 <= end <= len(stamped):
            break
        if stamped[position + 16] < 2:
            stamped[position + 12 : position + 16] = crc32(stamped[position + 16 : end]).to_bytes(4, "big")
        elif position + HEADER_SIZE <= end:
            stamped[position + 17 : position + 21] = crc32c(bytes(stamped[position + 21 : end])).to_bytes(4, "big")
        position = end
    return bytes(stamped)


def seeds() -> list[bytes]:
    """Batches in every compression, of transactions, message sets in every format, and several behind each other."""
    batches = [
        _batch(compression, transactional=transactional)
        for compression in CompressionType
        for transactional in (False, True)
    ]
    batches += [
        _batch(CompressionType.NONE, transactional=True) + _end_marker(),
        batches[0] + batches[2],
        batches[1][:-3],
        b"",
    ]
    sets = [_message_set(magic, compression) for magic in (0, 1) for compression in CompressionType if compression < 4]
    nested = encode_message(1, 2, 5, CompressionType.LZ4, None, sets[0][26:])  # not what it says it is
    mixed = [sets[0] + sets[5] + batches[2] + sets[4], sets[6] + nested, sets[3][:-1], sets[4][:-1]]
    return [bytes([options]) + batch for batch in batches + sets + mixed for options in (0, 1, 0x25, 0x5B)]


def _batch(compression: CompressionType, *, transactional: bool) -> bytes:
    builder = BatchBuilder(limit=1 << 16, compression=compression, is_transactional=transactional)
    builder.append(1000, b"key", b"value", [("name", b"text"), ("none", None)])
    builder.append(999, None, b"v" * 200)
    builder.append(70_000, b"", None, [("name", b"")])
    return bytes(builder.build(base_offset=3, producer_id=7, producer_epoch=0, base_sequence=0))


def _message_set(magic: Literal[0, 1], compression: CompressionType) -> bytes:
    builder = MessageSetBuilder(magic=magic, limit=1 << 16, compression=compression)
    builder.append(1000, b"key", b"value")
    builder.append(999, None, b"v" * 100)
    builder.append_at(7, 70_000, b"", None)
    return bytes(builder.build(base_offset=3))


def _end_marker() -> bytes:
    """The control batch that ends an aborted transaction."""
    builder = BatchBuilder(limit=1 << 16, is_transactional=True)
    builder.append(1000, *encode_end_marker(commit=False, coordinator_epoch=0))
    batch = builder.build(base_offset=6, producer_id=7, producer_epoch=0, base_sequence=-1)
    batch[22] |= 0x20  # the attribute that makes it one
    return with_checksums(batch)
