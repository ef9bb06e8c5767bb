"""How a backend finds its way in messages of which it knows nothing else."""

from __future__ import annotations

from typing import Protocol

from kclient.types import Buffer

__all__ = ["Framing", "MessageInfo"]


class MessageInfo(Protocol):
    """What a `Framing` reads from one message."""

    @property
    def length(self) -> int:
        """Length of the whole message in bytes."""
        ...

    @property
    def first(self) -> int:
        """The least ordinal in the message; not negative."""
        ...

    @property
    def last(self) -> int:
        """The greatest ordinal in the message (inclusive)."""
        ...

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp in the message, milliseconds since the epoch; -1 if it has none."""
        ...


class Framing(Protocol):
    """How to find one's way in a buffer of messages; supplied by whoever opens the topic.

    Backends index and verify through it and know nothing else of what they store. A backend in another process is
    given its name, and finds it there by `kclient.htp.find_framing`.
    """

    @property
    def name(self) -> str:
        """What it is registered by: a word for the format and its version, such as `kafka.record-batch.v2`.

        Two framings of one name read the same of the same bytes; a store may keep the name with the messages.
        """
        ...

    @property
    def prefix(self) -> int:
        """Bytes that `measure` needs; every message is longer than that."""
        ...

    def measure(self, buffer: Buffer, position: int = 0, /) -> int:
        """Length in bytes of the message at `position`, read from its first `prefix` bytes.

        Raises:
            ValueError: If no message can begin like this. Also `kclient.errors.CorruptRecordError`.
        """
        ...

    def inspect(self, buffer: Buffer, position: int = 0, /) -> MessageInfo:
        """What the message at `position`, which is wholly in the buffer, says of itself; without its CRC.

        Raises:
            ValueError: If that is no message. Also `kclient.errors.CorruptRecordError`.
        """
        ...

    def verify(self, buffer: Buffer, position: int = 0, /) -> bool:
        """Whether the message at `position` is whole and its CRC right. Never raises, whatever the bytes."""
        ...
