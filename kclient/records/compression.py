"""The four compressions of record batches, compatible with what Java's client writes and reads.

Every decompressor stops at a limit, because a few bytes may claim to be gigabytes; and it reports whatever
is wrong with the data as `CorruptRecordError`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Final, TypeAlias

import lz4.frame
import snappy
import zstandard

from kclient.arguments import index_of
from kclient.errors import ConfigError, CorruptRecordError, RecordTooLargeError
from kclient.records.arguments import shown
from kclient.records.batch_header import CompressionType
from kclient.records.frames import check_lz4_frame, check_zstd_end
from kclient.records.old_lz4 import mended_front
from kclient.types import Buffer

DEFAULT_MAX_DECOMPRESSED: Final = 256 * 1024 * 1024
"""Bytes that the records of one batch may have after decompression unless the caller sets another limit."""

LEVELS: Final[dict[CompressionType, tuple[int, int, int]]] = {
    CompressionType.GZIP: (1, 9, -1),
    CompressionType.LZ4: (1, 17, 9),
    CompressionType.ZSTD: (-131072, 22, 3),
}
"""Least, greatest and default level (KIP-390) of the compressions that have levels."""

_GZIP_WINDOW = 31  # zlib's way to say: gzip wrapper, 32 KiB window
_CHUNK = 1 << 20
_PIECE = 1 << 16  # what a gzip member is given at a time, as what it does not take at once is copied
_STEP = 1 << 10  # what a further gzip member is given first
_LEAST_WINDOW = 1 << 27  # what zstd allows of itself; its levels above 19 ask for as much even for small data
_GREATEST_WINDOW = 1 << 31
_MOST_FRAMES = DEFAULT_MAX_DECOMPRESSED // (64 * 1024)
"""Most gzip members or lz4 frames one behind another. Writers make one; each takes time even if it holds nothing."""

_SMALL_CONTEXT = 256 << 10  # of gzip, the largest of the others
_ZSTD_SOURCE = 4 << 20  # the size that zstd is set up for, at most: the high levels take hundreds of times as much else
_Pieces: TypeAlias = "tuple[Callable[[Buffer], bytes], Callable[[], bytes]]"

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK = 32 * 1024  # the block size of Java's SnappyOutputStream, as Kafka configures it
_INT32 = Struct(">i")


def check_compression(compression: Any) -> CompressionType:
    """The compression, which may be given as its number.

    Raises:
        ConfigError: There is no such compression.
    """
    if type(compression) is CompressionType:
        return compression
    number = index_of(compression)
    if number is None or not 0 <= number <= CompressionType.ZSTD:
        names = ", ".join(f"{kind.name} ({kind.value})" for kind in CompressionType)
        raise ConfigError(f"compression must be a CompressionType, one of {names}; not {shown(compression)}.")
    return CompressionType(number)


def check_level(compression: CompressionType, level: int | None) -> int | None:
    """The level as given, once it is known to be possible.

    Args:
        compression: The compression whose level it is.
        level: The level; None is Kafka's default, and the only one for compressions without levels.

    Raises:
        ConfigError: The compression has no levels, or not this one; or there is no such compression.
    """
    compression = check_compression(compression)
    if level is None:
        return None
    name = compression.name.lower()
    if compression not in LEVELS:
        raise ConfigError(f"compression.type={name} has no levels; leave the level out.")
    least, greatest, default = LEVELS[compression]
    number = index_of(level)
    if number is None or (number != default and not least <= number <= greatest):
        others = "" if least <= default <= greatest else f", or {default} for the default"
        raise ConfigError(
            f"compression.{name}.level must be an integer between {least} and {greatest}{others}, not {shown(level)}."
        )
    return number


def compress(compression: CompressionType, data: Buffer, level: int | None = None) -> bytes:
    """Compress the records of a batch.

    Args:
        compression: Which compression; not NONE.
        data: The records.
        level: A level of `LEVELS`, or None for Kafka's default.
    """
    return _COMPRESSORS[compression](data, level)


def decompress(
    compression: CompressionType,
    data: Buffer,
    limit: int = DEFAULT_MAX_DECOMPRESSED,
    *,
    ignore_lz4_checksum: bool = False,
) -> bytes | bytearray:
    """Decompress the records of a batch, up to `limit` bytes.

    Args:
        compression: Which compression; not NONE.
        data: The compressed records.
        limit: Greatest size in bytes after decompression.
        ignore_lz4_checksum: Whether the checksum in front of an lz4 frame may be wrong, as it is in message format v0.

    Raises:
        CorruptRecordError: The data are damaged or truncated.
        RecordTooLargeError: There are more than `limit` bytes.
    """
    output = _Output()
    for part in decompressed_pieces(compression, data, limit, ignore_lz4_checksum=ignore_lz4_checksum):
        output.add(part)
    return output.data


def decompressed_pieces(
    compression: CompressionType,
    data: Buffer,
    limit: int = DEFAULT_MAX_DECOMPRESSED,
    *,
    ignore_lz4_checksum: bool = False,
    one_lz4_frame: bool = False,
) -> Iterator[bytes]:
    """The records of a batch as they are decompressed, in pieces of 1 MiB at most (snappy: of a block).

    Beside the piece, it takes the memory that `working_memory` tells.

    Args:
        compression: Which compression; not NONE.
        data: The compressed records.
        limit: Greatest size in bytes after decompression.
        ignore_lz4_checksum: Whether the checksum in front of an lz4 frame may be wrong, as it is in message format v0.
        one_lz4_frame: Whether lz4 data have to be what Java's clients and librdkafka read: one frame of independent
            blocks, and nothing beside it.

    Raises:
        CorruptRecordError: The data are damaged or truncated.
        RecordTooLargeError: There are more than `limit` bytes.
    """
    try:
        if compression is CompressionType.LZ4:
            yield from _unlz4(data, limit, mended_front if ignore_lz4_checksum else None, one_frame=one_lz4_frame)
        else:
            yield from _DECOMPRESSORS[compression](data, limit)
    except (zlib.error, snappy.UncompressError, RuntimeError, zstandard.ZstdError, EOFError) as error:
        raise CorruptRecordError(
            f"{compression.name.lower()} cannot decompress the records: {str(error) or 'they are damaged'}"
        ) from error


def working_memory(compression: CompressionType, data: Buffer) -> int:
    """The most bytes that decompressing holds beside what it has yielded: zstd its window, snappy a block."""
    if compression is CompressionType.ZSTD:
        try:
            found = zstandard.get_frame_parameters(data)
        except zstandard.ZstdError:
            return 0  # reading it tells what is wrong
        return int(found.window_size)
    if compression is CompressionType.SNAPPY:
        with memoryview(data) as view:
            if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
                return min(_claimed_by_snappy(view), 64 * len(view))
    return 0


class _Output:
    """What was decompressed, kept once: growing where it is, it takes no second copy when it is complete."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data: bytes | bytearray = b""

    def add(self, part: bytes) -> None:
        """Append."""
        if not self.data:
            self.data = part
        elif part:
            if isinstance(self.data, bytes):
                self.data = bytearray(self.data)
            self.data += part


def compressing_memory(compression: CompressionType, level: int | None, size: int) -> int:
    """About how many bytes `PieceCompressor` holds beside what it has given, for records of `size` bytes in all."""
    if compression is CompressionType.ZSTD:
        return int(_zstd_parameters(level, size).estimated_compression_context_size())
    return _SMALL_CONTEXT


class PieceCompressor:
    """Compresses the records of a batch as they come, piece by piece.

    Args:
        compression: Which compression; not NONE.
        level: A level of `LEVELS`, or None for Kafka's default.
        size: How many bytes will come in all. zstd does with 64 MiB of memory, whatever the level and the size.
    """

    __slots__ = ("_compress", "_finish")

    def __init__(self, compression: CompressionType, level: int | None, size: int) -> None:
        self._compress, self._finish = _PIECE_COMPRESSORS[compression](level, size)

    def feed(self, piece: Buffer) -> bytes:
        """What there is after the next piece; it may be nothing."""
        return self._compress(piece)

    def finish(self) -> bytes:
        """The rest, after the last piece."""
        return self._finish()


def _gzip(data: Buffer, level: int | None) -> bytes:
    compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
    return compressor.compress(data) + compressor.flush()


def _gzip_pieces(level: int | None, size: int) -> _Pieces:
    compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
    return compressor.compress, compressor.flush


def _gunzip(data: Buffer, limit: int) -> Iterator[bytes]:
    room = limit
    with memoryview(data) as view:
        position, end = 0, len(view)
        step = _PIECE  # there is one member in general
        members = 0
        while position < end:
            members = _counted(members)
            decompressor = zlib.decompressobj(_GZIP_WINDOW)
            while not decompressor.eof:
                # What it made no room for yet comes first; it may also have more to give without any further input.
                piece: Buffer = decompressor.unconsumed_tail
                if not piece:
                    piece = view[position : position + step]
                    position += len(piece)
                    step = min(step * 2, _PIECE)
                part = decompressor.decompress(piece, min(room + 1, _CHUNK))
                if not part and not piece and not decompressor.eof:
                    raise EOFError("the data end too early")
                room = _left(room, part, limit)
                yield part
            # What is behind the member comes back as a copy, so it must be no more than the member's size or so.
            position -= len(decompressor.unused_data)
            step = _STEP


def _snappy(data: Buffer, level: int | None) -> bytes:
    parts = [_XERIAL_HEADER]
    with memoryview(data) as view:
        for start in range(0, len(view), _XERIAL_BLOCK):
            block = snappy.compress(view[start : start + _XERIAL_BLOCK])
            parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _snappy_pieces(level: int | None, size: int) -> _Pieces:
    rest = bytearray()
    parts = [_XERIAL_HEADER]

    def blocks(least: int) -> bytes:
        position = 0
        while len(rest) - position >= least:
            block = snappy.compress(bytes(rest[position : position + _XERIAL_BLOCK]))
            position += _XERIAL_BLOCK
            parts.extend((_INT32.pack(len(block)), block))
        del rest[:position]
        made = b"".join(parts)
        parts.clear()
        return made

    def feed(piece: Buffer) -> bytes:
        rest.extend(piece)
        return blocks(_XERIAL_BLOCK)

    return feed, lambda: blocks(1)


def _unsnappy(data: Buffer, limit: int) -> Iterator[bytes]:
    with memoryview(data) as view:
        if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
            yield _unsnappy_block(view, limit, limit)
        else:
            yield from _unsnappy_xerial(view, limit)


def _unsnappy_xerial(view: memoryview, limit: int) -> Iterator[bytes]:
    room = limit
    position = 0
    while position < len(view):
        if bytes(view[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)  # streams may have been put one behind another
            continue
        if len(view) - position < _INT32.size:
            raise EOFError("the data end too early")
        (length,) = _INT32.unpack_from(view, position)
        position += _INT32.size
        if not 0 < length <= len(view) - position:
            raise EOFError(f"a block claims {length} bytes of {len(view) - position}")
        part = _unsnappy_block(view[position : position + length], room, limit)
        room = _left(room, part, limit)
        yield part
        position += length


def _unsnappy_block(block: memoryview, room: int, limit: int) -> bytes:
    size = _claimed_by_snappy(block)
    if size > room:
        raise too_large(limit)
    # Snappy's own format allows at most 64 bytes from two, and its decoder allocates what the block claims.
    if size > 64 * len(block):
        raise EOFError(f"a block of {len(block)} bytes claims to hold {size}")
    return snappy.uncompress(block)  # type: ignore[no-any-return]


def _claimed_by_snappy(block: memoryview) -> int:
    """How many bytes a block says it holds."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return size


def _lz4(data: Buffer, level: int | None) -> bytes:
    # Java reads only frames of independent blocks. Its default level, 9, means the fast compressor.
    return lz4.frame.compress(data, store_size=False, **_lz4_options(level))  # type: ignore[no-any-return]


def _lz4_options(level: int | None) -> dict[str, Any]:
    effort = 0 if level in (None, 9) else min(level or 0, lz4.frame.COMPRESSIONLEVEL_MAX)
    return {"compression_level": effort, "block_size": lz4.frame.BLOCKSIZE_MAX64KB, "block_linked": False}


def _lz4_pieces(level: int | None, size: int) -> _Pieces:
    compressor = lz4.frame.LZ4FrameCompressor(**_lz4_options(level))
    begun = [compressor.begin()]

    def feed(piece: Buffer) -> bytes:
        head = begun.pop() if begun else b""
        return head + compressor.compress(piece)  # type: ignore[no-any-return]

    return feed, lambda: (begun.pop() if begun else b"") + compressor.flush()


def _unlz4(
    data: Buffer, limit: int, mend: Callable[[memoryview], bytes] | None = None, *, one_frame: bool = False
) -> Iterator[bytes]:
    # By the module's functions, as its decompressor object copies all that is behind a frame.
    room = limit
    context = lz4.frame.create_decompression_context()
    with memoryview(data) as view:
        position, end = 0, len(view)
        frames, complete = 0, True
        if one_frame:
            check_lz4_frame(view)
        while position < end:
            if complete:
                frames = _counted(frames)
                if one_frame and frames > 1:
                    raise EOFError(f"{end - position} bytes follow the frame, where Java's clients look for nothing")
                if mend is not None and (front := mend(view[position:])):
                    lz4.frame.decompress_chunk(context, front, max_length=0)
                    position += len(front)
            part, used, complete = lz4.frame.decompress_chunk(
                context, view[position:], max_length=min(room + 1, _CHUNK)
            )
            room = _left(room, part, limit)
            yield part
            position += used
        if not complete:
            raise EOFError("the data end too early")


def _zstd(data: Buffer, level: int | None) -> bytes:
    return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def _zstd_pieces(level: int | None, size: int) -> _Pieces:
    compressor = zstandard.ZstdCompressor(compression_params=_zstd_parameters(level, size)).compressobj(size=size)
    return compressor.compress, compressor.flush


def _zstd_parameters(level: int | None, size: int) -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters.from_level(
        3 if level is None else level, source_size=max(1, min(size, _ZSTD_SOURCE))
    )


def _unzstd(data: Buffer, limit: int) -> Iterator[bytes]:
    # Read piece by piece: a frame's header may be missing the size, or lie about it.
    room = limit
    if _claimed_by_zstd(data) > limit:
        raise too_large(limit)
    window = min(max(limit, _LEAST_WINDOW), _GREATEST_WINDOW)  # a frame's that is one segment is all of its size
    decompressor = zstandard.ZstdDecompressor(max_window_size=window)
    with decompressor.stream_reader(data, read_across_frames=True) as reader:
        while part := reader.read(min(_CHUNK, room + 1)):
            room = _left(room, part, limit)
            yield part
    with memoryview(data) as view:
        check_zstd_end(view)  # the reader takes the end of the data for the end of the frame


def _claimed_by_zstd(data: Buffer) -> int:
    """How many bytes the first frame says it holds; -1 if it does not say."""
    try:
        return zstandard.frame_content_size(data)
    except zstandard.ZstdError:
        return -1  # reading it tells what is wrong


def _left(room: int, part: bytes, limit: int) -> int:
    if len(part) > room:
        raise too_large(limit)
    return room - len(part)


def _counted(frames: int) -> int:
    if frames == _MOST_FRAMES:
        raise EOFError(f"there are more than {_MOST_FRAMES} streams, one behind another")
    return frames + 1


def too_large(limit: int) -> RecordTooLargeError:
    """The exception for records of more than `limit` bytes."""
    return RecordTooLargeError(
        f"The records of a batch are more than {limit} bytes when decompressed; raise the limit (max_decompressed, "
        "the consumer's fetch.max.decompressed.bytes) if they are meant to be."
    )


_COMPRESSORS: Final[dict[CompressionType, Callable[[Buffer, int | None], bytes]]] = {
    CompressionType.GZIP: _gzip,
    CompressionType.SNAPPY: _snappy,
    CompressionType.LZ4: _lz4,
    CompressionType.ZSTD: _zstd,
}
_PIECE_COMPRESSORS: Final[dict[CompressionType, Callable[[int | None, int], _Pieces]]] = {
    CompressionType.GZIP: _gzip_pieces,
    CompressionType.SNAPPY: _snappy_pieces,
    CompressionType.LZ4: _lz4_pieces,
    CompressionType.ZSTD: _zstd_pieces,
}
_DECOMPRESSORS: Final[dict[CompressionType, Callable[[Buffer, int], Iterator[bytes]]]] = {
    CompressionType.GZIP: _gunzip,
    CompressionType.SNAPPY: _unsnappy,
    CompressionType.ZSTD: _unzstd,
}
