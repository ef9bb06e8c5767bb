"""Messages: classes whose fields are declared with `field`, and that turn into bytes and back.

`Message` is the base of everything declared; `ApiMessage` that of requests, responses and other messages that stand
by themselves. Instances have slots, a keyword-only constructor with defaults for every field, equality and a repr
that shows what differs from the defaults.
"""

from __future__ import annotations

import gc
import struct
from typing import Any, ClassVar, Self, cast, dataclass_transform

from kclient.errors import KafkaError, ProtocolError, UnsupportedVersionError
from kclient.protocol.codec import Decoder, Encoder, compile_decoder, compile_encoder, compile_init
from kclient.protocol.schema import Field, Unnamed, has_secrets, schema_of
from kclient.protocol.versions import Versions
from kclient.types import Buffer

_LARGE = 64 * 1024
_NO_VERSIONS = Versions.parse("none")


@dataclass_transform(kw_only_default=True)
class MessageType(type):
    """Collects the fields of a message class and gives the class slots for them."""

    FIELDS: tuple[Field, ...]

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> MessageType:
        fields = [key for key, value in namespace.items() if isinstance(value, Unnamed)]
        declared = tuple(namespace.pop(key).named(key) for key in fields)
        namespace["__slots__"] = (*namespace.get("__slots__", ()), *fields)
        namespace["FIELDS"] = declared
        return super().__new__(mcs, name, bases, namespace, **options)


class Message(metaclass=MessageType):
    """A struct of the Kafka protocol whose fields are attributes."""

    __slots__ = ("_unknown",)

    FIELDS: ClassVar[tuple[Field, ...]] = ()
    """The declared fields, in the order in which they are written."""

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __init__(self, **values: Any) -> None:
        # The constructor is written when the first instance is made; from then on it takes this one's place.
        init = compile_init(type(self))
        type(self).__init__ = init  # type: ignore[method-assign]
        init(self, **values)

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Whether a version has varint lengths and tagged fields; nested structs follow their message."""
        return True

    @property
    def unknown_tagged_fields(self) -> dict[int, bytes] | None:
        """Tagged fields that the declaration does not know, by tag; they are kept and written again."""
        return cast("dict[int, bytes] | None", getattr(self, "_unknown", None))

    @unknown_tagged_fields.setter
    def unknown_tagged_fields(self, fields: dict[int, bytes] | None) -> None:
        object.__setattr__(self, "_unknown", fields or None)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (
            all(getattr(self, item.name) == getattr(other, item.name) for item in self.FIELDS)
            and self.unknown_tagged_fields == other.unknown_tagged_fields
        )

    def __repr__(self) -> str:
        shown = [
            f"{item.name}={item.shown(getattr(self, item.name))}"
            for item in self.FIELDS
            if getattr(self, item.name) != item.new_default()
        ]
        if self.unknown_tagged_fields:
            shown.append(f"unknown_tagged_fields={self.unknown_tagged_fields!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class ApiMessage(Message):
    """A message that stands by itself: a request, a response, or data embedded in one.

    Declared with `class X(ApiMessage, api_key=3, versions="0-13", flexible="9+")`.
    """

    API_KEY: ClassVar[int | None] = None
    """Number of the API, or None for data that is not an API's."""
    VERSIONS: ClassVar[Versions] = _NO_VERSIONS
    """The versions that can be read and written, as (lowest, highest)."""
    FLEXIBLE: ClassVar[Versions] = _NO_VERSIONS
    """The flexible versions (KIP-482)."""

    _encoders: ClassVar[dict[int, Encoder]] = {}
    _decoders: ClassVar[dict[int, Decoder]] = {}

    def __init_subclass__(
        cls, api_key: int | None = None, versions: str = "none", flexible: str = "none", **options: Any
    ) -> None:
        super().__init_subclass__(**options)
        cls.API_KEY = api_key
        cls.VERSIONS = Versions.parse(versions)
        cls.FLEXIBLE = Versions.parse(flexible)
        cls._encoders = {}
        cls._decoders = {}

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Whether a version has varint lengths and tagged fields (KIP-482)."""
        return version in cls.FLEXIBLE

    def encode(self, version: int) -> bytes:
        """The bytes of this message in a version.

        Raises:
            UnsupportedVersionError: If the version is not known, or lacks a field that has a value.
            ValueError: If a value does not fit its field; the text names the field.
        """
        return b"".join(self.encode_parts(version))

    def encode_parts(self, version: int) -> list[Buffer]:
        """The bytes of this message in pieces: record batches are pieces of their own and are not copied.

        Raises:
            UnsupportedVersionError: If the version is not known, or lacks a field that has a value.
            ValueError: If a value does not fit its field; the text names the field.
        """
        parts: list[Buffer] = []
        parts.append(self.encode_into(bytearray(), parts, version))
        return parts

    def encode_into(self, out: bytearray, parts: list[Buffer], version: int) -> bytearray:
        """Append this message to `out`; where records come, `out` and the records move to `parts`.

        Returns:
            The buffer that is open at the end: `out`, or a new one that continues after the last records.

        Raises:
            UnsupportedVersionError: If the version is not known, or lacks a field that has a value.
            ValueError: If a value does not fit its field; the text names the field.
        """
        try:
            encoder = self._encoders[version]
        except KeyError:
            encoder = self._encoders[version] = compile_encoder(type(self), self._checked(version))
        try:
            return encoder(self, out, parts)
        except KafkaError:
            raise
        except (struct.error, TypeError, ValueError, AttributeError, OverflowError) as error:
            failed = error
        # outside of the handler: the error must not hang on to one that shows a secret
        raise self._explained(version, failed) from (None if has_secrets(self.FIELDS) else failed)

    @classmethod
    def decode(cls, buffer: Buffer, version: int) -> Self:
        """Read a message that takes the whole buffer.

        Records are views of the buffer: it must not change while they are used.

        Raises:
            ProtocolError: If the bytes are not a valid message of this version.
            UnsupportedVersionError: If the version is not known.
        """
        message, end = cls.decode_from(buffer, 0, version)
        if end != len(buffer):
            raise ProtocolError(f"{len(buffer) - end} bytes follow {cls.__name__} v{version} at its end", position=end)
        return message

    @classmethod
    def decode_from(cls, buffer: Buffer, position: int, version: int) -> tuple[Self, int]:
        """Read a message that begins at a position; gives it and the position behind it.

        Raises:
            ProtocolError: If the bytes are not a valid message of this version.
            UnsupportedVersionError: If the version is not known.
        """
        try:
            decoder = cls._decoders[version]
        except KeyError:
            decoder = cls._decoders[version] = compile_decoder(cls, cls._checked(version))
        # A large message is tens of thousands of objects, none of them garbage: the collector, which would look at all
        # of them again and again meanwhile, took more than a third of the time.
        pause = len(buffer) - position >= _LARGE and gc.isenabled()
        message = None
        try:
            if pause:
                gc.disable()
            message, end = decoder(buffer, position)
        except ProtocolError as error:
            raise ProtocolError(f"{cls.__name__} v{version}: {error}", position=error.position) from None
        except (IndexError, ValueError, struct.error) as error:
            failed = error
        finally:
            if pause:
                gc.enable()
        if message is None:  # raised outside of the handler: a UnicodeDecodeError holds the bytes
            cause = None if has_secrets(cls.FIELDS) else failed
            raise ProtocolError(f"{cls.__name__} v{version} is cut off or malformed: {failed}") from cause
        if end > len(buffer):
            raise ProtocolError(
                f"{cls.__name__} v{version} is cut off: it needs at least {end - len(buffer)} bytes more",
                position=end,
            )
        return message, end

    @classmethod
    def _checked(cls, version: int) -> int:
        if version not in cls.VERSIONS:
            raise UnsupportedVersionError(
                f"kclient knows {cls.__name__} in versions {cls.VERSIONS}, not in version {version}"
            )
        return version

    def _explained(self, version: int, error: Exception) -> Exception:
        """Encode once more, field by field, to name the one that has a wrong value."""
        try:
            schema_of(type(self), version).encode(self)
        except (ValueError, KafkaError) as explained:
            text = f"{type(self).__name__} v{version} cannot be encoded: {explained}"
            return type(explained)(text) if isinstance(explained, KafkaError) else ValueError(text)
        reason = type(error).__name__ if has_secrets(self.FIELDS) else error
        return ValueError(f"{type(self).__name__} v{version} cannot be encoded: {reason}")
