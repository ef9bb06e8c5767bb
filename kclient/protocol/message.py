"""Messages: classes whose fields are declared with `field`, and that turn into bytes and back.

`Message` is the base of everything declared; `ApiMessage` that of requests, responses and other messages that stand
by themselves. Instances have slots, a keyword-only constructor with defaults for every field, equality and a repr
that shows what differs from the defaults.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast, dataclass_transform

from kclient.errors import ProtocolError, UnsupportedVersionError
from kclient.protocol.codec import (
    Decoder,
    DecoderSteps,
    Encoder,
    EncoderSteps,
    compile_decoder,
    compile_decoder_steps,
    compile_encoder,
    compile_encoder_steps,
    compile_init,
)
from kclient.protocol.errors import EncodeError, title_of
from kclient.protocol.primitives import RawTaggedField, amount, check_bytes, left_over, unknown_tags
from kclient.protocol.schema import Declaration, Field, Unnamed, has_secrets
from kclient.protocol.structs import schema_of
from kclient.protocol.versions import Versions
from kclient.types import Buffer

if TYPE_CHECKING:
    from inspect import Signature
    from types import TracebackType

_LARGE = 64 * 1024
_EXPLAINED = 256 * 1024
"""Bytes of malformed messages that are read again, ten times slower, to say what is wrong with them."""
_EXPLAINED_IN_STEPS = 2 * 1024
"""The same for those that are read in steps, as nobody is to wait for the explanation."""
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

    @property
    def __signature__(cls) -> Signature:
        """The constructor's signature, for `inspect.signature` and `help`; made when somebody asks."""
        from inspect import Parameter, Signature

        hints = vars(cls).get("__annotations__", {})
        return Signature(
            [
                Parameter(
                    item.name,
                    Parameter.KEYWORD_ONLY,
                    default=item.new_default(),
                    annotation=hints.get(item.name, Parameter.empty),
                )
                for item in cls.FIELDS
            ]
        )


class Message(Declaration, metaclass=MessageType):
    """A struct of the Kafka protocol whose fields are attributes."""

    __slots__ = ("_unknown",)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __init__(self, *positional: Any, **values: Any) -> None:
        # The constructor is written when the first instance is made; from then on it takes this one's place.
        init = compile_init(type(self))
        type(self).__init__ = init  # type: ignore[method-assign]
        init(self, *positional, **values)

    @property
    def unknown_tagged_fields(self) -> list[RawTaggedField] | None:
        """Tagged fields that the declaration does not know, in the order in which they came, or None.

        They are kept and written again. As in Kafka's generated classes, reading takes each one as it comes, even if
        tags do not rise or come twice, and writing refuses such a list with an `EncodeError`. (A *known* tagged field
        that comes twice has its last value; one that only other versions have is a `ProtocolError`, as in Kafka.)

        Can be set to pairs of tag and bytes in that order, to a mapping of tags to bytes, or to None.
        """
        return cast("list[RawTaggedField] | None", getattr(self, "_unknown", None))

    @unknown_tagged_fields.setter
    def unknown_tagged_fields(self, fields: Mapping[int, Buffer] | Iterable[tuple[int, Buffer]] | None) -> None:
        object.__setattr__(self, "_unknown", unknown_tags(fields))

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
    IS_REQUEST: ClassVar[bool] = False
    """Whether it is the request of its API."""
    VERSIONS: ClassVar[Versions] = _NO_VERSIONS
    """The versions that can be read and written, as (lowest, highest)."""
    FLEXIBLE: ClassVar[Versions] = _NO_VERSIONS
    """The flexible versions (KIP-482)."""

    _encoders: ClassVar[dict[int, Encoder]] = {}
    _decoders: ClassVar[dict[int, Decoder]] = {}
    _encoder_steps: ClassVar[dict[int, EncoderSteps]] = {}
    _decoder_steps: ClassVar[dict[int, DecoderSteps]] = {}

    def __init_subclass__(
        cls, api_key: int | None = None, versions: str = "none", flexible: str = "none", **options: Any
    ) -> None:
        super().__init_subclass__(**options)
        cls.API_KEY = api_key
        cls.IS_REQUEST = api_key is not None and cls.__name__.endswith("Request")
        cls.VERSIONS = Versions.parse(versions)
        cls.FLEXIBLE = Versions.parse(flexible)
        cls._encoders = {}
        cls._decoders = {}
        cls._encoder_steps = {}
        cls._decoder_steps = {}

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Whether a version has varint lengths and tagged fields (KIP-482)."""
        return version in cls.FLEXIBLE

    def encode(self, version: int) -> bytes:
        """The bytes of this message in a version.

        Raises:
            UnsupportedVersionError: If the version is not known, lacks a field that has a value, or does not allow a
                null; the text names the field.
            EncodeError: If a value does not fit its field; a ValueError that names message, version and field.
        """
        return b"".join(self.encode_parts(version))

    def encode_parts(self, version: int) -> list[Buffer]:
        """The bytes of this message in pieces: record batches are pieces of their own and are not copied.

        Raises:
            UnsupportedVersionError: If the version is not known, lacks a field that has a value, or does not allow a
                null; the text names the field.
            EncodeError: If a value does not fit its field; a ValueError that names message, version and field.
        """
        parts: list[Buffer] = []
        parts.append(self.encode_into(bytearray(), parts, version))
        return parts

    def encode_into(self, out: bytearray, parts: list[Buffer], version: int) -> bytearray:
        """Append this message to `out`; where records come, `out` and the records move to `parts`.

        If it raises, `out` and `parts` hold the beginning of the message.

        Returns:
            The buffer that is open at the end: `out`, or a new one that continues after the last records.

        Raises:
            UnsupportedVersionError: If the version is not known, lacks a field that has a value, or does not allow a
                null; the text names the field.
            EncodeError: If a value does not fit its field; a ValueError that names message, version and field.
        """
        try:
            encoder = self._encoders[version]
        except (KeyError, TypeError):
            encoder = self._encoders[version] = compile_encoder(type(self), self._checked(version))
        try:
            return encoder(self, out, parts)
        except Exception as error:  # noqa: BLE001  (a value may be of any class, and fail in its own way)
            failed = error.with_traceback(None)  # whose frames hold the message, and this one
        # outside of the handler: the error must not hang on to one that shows a secret
        raise self._encoding_error(version, failed)

    def encode_steps(self, out: bytearray, parts: list[Buffer], version: int) -> Generator[int, None, bytearray]:
        """As `encode_into`, for large messages: a generator that pauses after every few elements.

        Arrays may be anything with a length and an iterator here, so that elements are made when they are written.
        Whatever making them raises goes through. `out` is split up where it grows large.

        Yields:
            How many bytes were written since the last pause.
        """
        try:
            encoder = self._encoder_steps[version]
        except (KeyError, TypeError):
            encoder = self._encoder_steps[version] = compile_encoder_steps(type(self), self._checked(version))
        try:
            return (yield from encoder(self, out, parts))
        except (TypeError, ValueError, AttributeError, struct.error) as error:
            failed = error.with_traceback(None)
        raise self._encoding_error(version, failed)

    @classmethod
    def decode(cls, buffer: Buffer, version: int) -> Self:
        """Read a message that takes the whole buffer.

        Records are views of the buffer: it must not change while they are used.

        Raises:
            ProtocolError: If the bytes are not a valid message of this version. The text names message, version and
                place, and the field too unless the message is larger than 256 KiB.
            UnsupportedVersionError: If the version is not known.
        """
        message, end = cls.decode_from(buffer, 0, version)
        if end != len(buffer):
            raise left_over(title_of(cls.__name__, version), buffer, end)
        return message

    @classmethod
    def decode_from(cls, buffer: Buffer, position: int, version: int) -> tuple[Self, int]:
        """Read a message that begins at a position; gives it and the position behind it.

        Raises:
            ProtocolError: If the bytes are not a valid message of this version. The text names message, version and
                place, and the field too unless the message is larger than 256 KiB.
            UnsupportedVersionError: If the version is not known.
        """
        try:
            decoder = cls._decoders[version]
        except (KeyError, TypeError):
            decoder = cls._decoders[version] = compile_decoder(cls, cls._checked(version))
        # A large message is tens of thousands of objects, none of them garbage: the collector, which would look at all
        # of them again and again meanwhile, took more than a third of the time.
        pause = False
        failed: Exception | None = None
        try:
            pause = len(buffer) - position >= _LARGE and gc.isenabled()
            if pause:
                gc.disable()
            message, end = decoder(buffer, position)
        except (ProtocolError, IndexError, ValueError, TypeError, struct.error) as error:
            failed = error.with_traceback(None)  # whose frames hold what was read, and this one
        finally:
            if pause:
                gc.enable()
        if failed is not None:  # raised outside of the handler: a UnicodeDecodeError holds the bytes
            raise cls._malformed(buffer, position, version, failed)
        if end > len(buffer):
            text = f"cut off, at least {amount(end - len(buffer))} more should follow"
            raise cls._malformed(buffer, position, version, ProtocolError(text, position=len(buffer)))
        return message, end

    @classmethod
    def decode_steps(cls, buffer: Buffer, position: int, version: int) -> Generator[int, None, tuple[Self, int]]:
        """As `decode_from`, for large messages of peers that are not trusted: a generator that pauses now and then.

        The buffer is read in place. Beside records, bytes of more than 1 MiB in one field are views of it. Whether
        the collector pauses meanwhile is the caller's affair. The text of an error names the field only if the message
        is not larger than 2 KiB.

        Yields:
            About how many bytes of memory the objects took since the last pause.

        Raises:
            ProtocolError: If the bytes are not a valid message of this version.
            UnsupportedVersionError: If the version is not known.
        """
        try:
            decoder = cls._decoder_steps[version]
        except (KeyError, TypeError):
            decoder = cls._decoder_steps[version] = compile_decoder_steps(cls, cls._checked(version))
        failed: Exception
        trace: list[TracebackType | None] = []
        try:
            message, end = yield from decoder(buffer, position)
        except (ProtocolError, IndexError, ValueError, TypeError, struct.error) as error:
            trace.append(error.__traceback__)
            failed = error.with_traceback(None)
        else:
            if end <= len(buffer):
                return message, end
            text = f"cut off, at least {amount(end - len(buffer))} more should follow"
            failed = ProtocolError(text, position=len(buffer))
        # With the frames that hold what was read, for who gives it up in steps. Nothing in this one holds the error:
        # they would hold each other.
        raise cls._malformed(buffer, position, version, failed, _EXPLAINED_IN_STEPS).with_traceback(
            trace.pop() if trace else None
        )

    @classmethod
    def _checked(cls, version: int) -> int:
        if version not in cls.VERSIONS:
            raise UnsupportedVersionError(
                f"kclient knows {cls.__name__} in versions {cls.VERSIONS}, not in version {version!r}"
            ) from None  # callers look it up in a dict first
        return version

    def _encoding_error(self, version: int, failed: Exception) -> Exception:
        """Encode once more, field by field, for an error that names the one with the wrong value."""
        try:
            schema_of(type(self), version).write(_Nowhere(), self, mappings=False)
        except (EncodeError, UnsupportedVersionError) as explained:
            return explained.with_traceback(None)
        # the schema found nothing: what failed lies outside of the values
        reason = type(failed).__name__ if has_secrets(self.FIELDS) else f"{type(failed).__name__}: {failed}"
        return EncodeError(f"{title_of(type(self).__name__, version)}: {reason}", version=version)

    @classmethod
    def _malformed(
        cls, buffer: Buffer, position: int, version: int, failed: Exception, explained_size: int = _EXPLAINED
    ) -> ProtocolError:
        """Read once more, field by field, for an error that says what is wrong, and where."""
        check_bytes(buffer)
        if len(buffer) - position <= explained_size:
            try:
                schema_of(cls, version).read(buffer, position)
            except ProtocolError as explained:
                return ProtocolError(explained.message, position=explained.position)
        title = title_of(cls.__name__, version)
        if isinstance(failed, ProtocolError):
            return ProtocolError(f"{title}: {failed.message}", position=failed.position)
        if isinstance(failed, UnicodeDecodeError):
            return ProtocolError(f"{title}: a text is not valid UTF-8")
        return ProtocolError(f"{title}: cut off, or malformed so that it seems longer than its {len(buffer)} bytes")


class _Nowhere(bytearray):
    """Takes bytes and forgets them."""

    def __iadd__(self, data: Any) -> Self:  # type: ignore[misc]
        return self

    def append(self, byte: Any) -> None:
        pass
