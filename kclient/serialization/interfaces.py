"""What a serializer and a deserializer are."""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

from kclient.types import Buffer, Headers

__all__ = ["Deserializer", "Serializer"]

T_contra = TypeVar("T_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Serializer(Protocol[T_contra]):
    """Turns keys or values into bytes. It may also have a method `close()`, called when its client closes."""

    def serialize(self, topic: str, value: T_contra | None, headers: Headers = ()) -> Buffer | None:
        """The bytes of a value; None for a null.

        Args:
            topic: The topic that it is sent to.
            value: The key or value.
            headers: The record's headers.

        Raises:
            SerializationError: If the value cannot be turned into bytes; any other exception counts as one.
        """
        ...


@runtime_checkable
class Deserializer(Protocol[T_co]):
    """Turns bytes into keys or values. It may also have a method `close()`, called when its client closes."""

    def deserialize(self, topic: str, data: Buffer | None, headers: Headers = ()) -> T_co | None:
        """The value of some bytes; None for a null.

        Args:
            topic: The topic that they come from.
            data: The bytes; valid during the call, copy what is to be kept.
            headers: The record's headers.

        Raises:
            SerializationError: If the bytes make no sense; any other exception counts as one.
        """
        ...
