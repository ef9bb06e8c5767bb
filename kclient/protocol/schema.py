"""The schema language: what a message's declaration is made of.

A message is a class whose fields say type, versions, nullability, default and tag, in the vocabulary of the
protocol guide:

```python
class MetadataRequestTopic(Message):
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    name: str | None = field(STRING, "0+", nullable="10+")

class MetadataRequest(ApiMessage, api_key=3, versions="0-13", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = field(ArrayOf(MetadataRequestTopic), nullable="1+")
```

What one version has of it is a `Schema`, see `structs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar, cast, overload

from kclient.protocol.types import BYTES, RECORDS, LengthType, Type
from kclient.protocol.versions import Versions
from kclient.types import Buffer

T = TypeVar("T")


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()


# --- composite types -----------------------------------------------------------------------------------------


class ArrayType(LengthType[list[Any]]):
    """A list of values of one type. Written `ArrayOf(INT32)` or `ArrayOf(SomeMessage)` in declarations."""

    def __init__(self, element: Type[Any]) -> None:
        super().__init__(f"[]{element.name}", [], wide=True)
        self.element = element


class Declaration:
    """What schemas, encoders and decoders know of a message class."""

    __slots__ = ()

    FIELDS: ClassVar[tuple[Field, ...]] = ()
    """The declared fields, in the order in which they are written."""

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Whether a version has varint lengths and tagged fields; nested structs follow their message."""
        return True


class StructType(Type[Any]):
    """A message inside another one. Declarations name the class itself."""

    def __init__(self, message: type[Declaration]) -> None:
        super().__init__(message.__name__, None)
        self.message = message


def ArrayOf(element: type[T] | Type[T]) -> Type[list[T]]:  # noqa: N802  (a type, in Kafka's vocabulary)
    """The type of an array whose elements have the given type."""
    return ArrayType(as_type(element))


def as_type(kind: type[Any] | Type[Any]) -> Type[Any]:
    """The type itself, or the struct type of a message class."""
    return kind if isinstance(kind, Type) else StructType(kind)


# --- fields --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, in all its versions.

    Attributes:
        name: Its name: Kafka's in snake_case.
        type: Its type.
        versions: The versions that have it.
        nullable: The versions in which it may be null.
        default: Its value where a version does not have it, and if none is given.
        ignorable: Whether a version that lacks the field drops its value silently. For other fields encoding
            raises `UnsupportedVersionError` if they have another value than the default.
        tag: Number of the tagged field, or None.
        tagged: The versions in which it is a tagged field.
        flexible: The versions in which it may be compact, where that differs from the message.
        sensitive: Whether the value is a secret, which neither a `repr` nor an error shows.
    """

    name: str
    type: Type[Any]
    versions: Versions
    nullable: Versions
    default: Any
    ignorable: bool
    tag: int | None
    tagged: Versions
    flexible: Versions
    sensitive: bool

    def new_default(self) -> Any:
        """The default, as a value of its own if it can be changed."""
        if self.default is not UNSET:
            return self.default
        if isinstance(self.type, StructType):
            return self.type.message()
        return [] if isinstance(self.type, ArrayType) else self.type.default

    def is_tagged(self, version: int) -> bool:
        """Whether it is a tagged field in that version."""
        return self.tag is not None and version in self.tagged

    def shown(self, value: Any) -> str:
        """A value of it, for a `repr` or an error: no secrets, however deep they lie, and no megabytes."""
        if self.sensitive:
            return _HIDDEN if value else repr(value)
        return shown(self.type, value)


@dataclass(frozen=True, slots=True)
class Unnamed:
    """A field before its class gives it a name: what `field()` returns."""

    options: dict[str, Any]

    def named(self, name: str) -> Field:
        """The field under its name."""
        return Field(name=name, **self.options)


@overload
def field(
    kind: type[T] | Type[T],
    versions: str = "0+",
    *,
    default: Any = UNSET,
    ignorable: bool = False,
    tag: int | None = None,
    tagged: str | None = None,
    flexible: str = "0+",
    sensitive: bool = False,
) -> T: ...
@overload
def field(
    kind: type[T] | Type[T],
    versions: str = "0+",
    *,
    nullable: str,
    default: Any = UNSET,
    ignorable: bool = False,
    tag: int | None = None,
    tagged: str | None = None,
    flexible: str = "0+",
    sensitive: bool = False,
) -> T | None: ...
def field(
    kind: type[Any] | Type[Any],
    versions: str = "0+",
    *,
    nullable: str = "none",
    default: Any = UNSET,
    ignorable: bool = False,
    tag: int | None = None,
    tagged: str | None = None,
    flexible: str = "0+",
    sensitive: bool = False,
) -> Any:
    """Declare a field of a message; see `Field` for what the options mean.

    Args:
        kind: The type, or the message class of a nested struct.
        versions: The versions that have the field, such as "0+" or "3-5".
        nullable: The versions in which it may be null.
        default: Its default; else 0, "", False, an empty array or a struct of defaults.
        ignorable: Whether versions without the field drop it silently.
        tag: Its number, if it is a tagged field.
        tagged: The versions in which it is one; else all in `versions`.
        flexible: The versions in which it may be compact.
        sensitive: Whether the value is a secret.
    """
    options = {
        "type": as_type(kind),
        "versions": Versions.parse(versions),
        "nullable": Versions.parse(nullable),
        "default": default,
        "ignorable": ignorable,
        "tag": tag,
        "tagged": Versions.parse(tagged or (versions if tag is not None else "none")),
        "flexible": Versions.parse(flexible),
        "sensitive": sensitive,
    }
    return cast("Any", Unnamed(options))


# --- what may be shown ----------------------------------------------------------------------------------------


_HIDDEN: Final = "<hidden>"
_MANY_BYTES: Final = 64


def has_secrets(fields: tuple[Field, ...]) -> bool:
    """Whether a field is sensitive, or one of the structs inside."""
    return any(item.sensitive or _holds_secrets(item.type) for item in fields)


def _holds_secrets(kind: Type[Any]) -> bool:
    if isinstance(kind, ArrayType):
        return _holds_secrets(kind.element)
    return isinstance(kind, StructType) and has_secrets(kind.message.FIELDS)


class ShowsItself:
    """A value whose own repr hides its secrets."""

    __slots__ = ()


def shown(kind: Type[Any], value: Any) -> str:
    """A value of a type, for a `repr` or an error: no secrets, and no megabytes of bytes."""
    if not _holds_secrets(kind):
        if isinstance(value, Buffer):
            return f"<{len(value)} bytes>" if len(value) > _MANY_BYTES else repr(bytes(value))
        return repr(value)
    if isinstance(kind, ArrayType) and isinstance(value, list | tuple):
        return f"[{', '.join(shown(kind.element, element) for element in value)}]"
    if isinstance(kind, StructType):
        if isinstance(value, kind.message | ShowsItself):
            return repr(value)
        if isinstance(value, Mapping):  # structs may be given as plain mappings
            known = {item.name: item for item in kind.message.FIELDS}
            return f"{{{', '.join(f'{key!r}: {known[key].shown(value[key])}' for key in value if key in known)}}}"
    return repr(value) if value is None else _HIDDEN  # of a wrong type: anything may be in it


__all__ = ["BYTES", "RECORDS", "ArrayOf", "Field", "field"]
