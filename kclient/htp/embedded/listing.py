"""The messages of a topic that nobody has open, one by one, each with what its checksum says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kclient.errors import KafkaError
from kclient.htp.embedded.reading import NotCachedError, SegmentWindow
from kclient.htp.embedded.recovery import SyncCheckpoint
from kclient.htp.embedded.segment import Segment, base_of
from kclient.htp.port import Framing, MessageInfo
from kclient.types import Buffer

_AHEAD: Final = 1 << 20
_INTERVAL: Final = 1 << 14


class StoredMessage(NamedTuple):
    """A message, or what lies in its place."""

    segment: str
    """The name of its file."""
    place: int
    """Where it begins, in bytes."""
    length: int
    """Its bytes; of what is no message, those up to the end of the file."""
    info: MessageInfo | None
    """What it says of itself; None for bytes that are no whole message."""
    sound: bool
    """Whether its checksum is that of its bytes."""
    data: Buffer
    """The message itself; valid until the next one is taken."""
    counts: bool
    """Whether it belongs to the log; what lies behind a failed sync or damage does not, and will be cut."""


def stored_messages(directory: str, framing: Framing, checkpoint: SyncCheckpoint) -> Iterator[StoredMessage]:
    """The messages in the segments of a directory, in order; nothing is changed.

    A message whose checksum is wrong is told, and the next one looked for where it ends. Where no message can begin,
    the rest of the segment is told as one.

    Args:
        directory: Of the topic; it may be missing.
        framing: How messages are read.
        checkpoint: What the manager knows of the topic.

    Raises:
        OSError: A file cannot be read.
    """
    # as recovery has it
    limits = {base: size for base, size in checkpoint.limits.items() if base != checkpoint.segment}
    try:
        bases = sorted(base for path in Path(directory).iterdir() if (base := base_of(path.name)) is not None)
    except FileNotFoundError:
        return
    for base in bases:
        path = Path(Segment.empty(directory, base, _INTERVAL).path)
        with path.open("rb", buffering=0) as file:
            yield from _of_segment(path.name, file.fileno(), framing, limits.get(base))


def _of_segment(name: str, fd: int, framing: Framing, limit: int | None) -> Iterator[StoredMessage]:
    size = os.fstat(fd).st_size
    window = SegmentWindow(lambda length, place: os.pread(fd, length, place), framing, size)
    place = 0
    while place < size:
        counts = limit is None or place < limit
        try:
            length = window.length_at(place, _AHEAD)
            info = None if length is None else window.inspect(place)
        except (ValueError, KafkaError, NotCachedError):
            length = info = None
        if length is None or info is None:
            yield StoredMessage(name, place, size - place, None, sound=False, data=b"", counts=counts)
            return
        begin = place - window.begin
        sound = framing.verify(window.buffer, begin)
        data = memoryview(window.buffer)[begin : begin + length]
        yield StoredMessage(name, place, length, info, sound, data, counts)
        place += length
