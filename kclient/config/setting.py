"""The declaration of one setting: its kind, default, description, and whether kclient serves it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kclient.arguments import LONGEST_TEXT, shown
from kclient.config.secret import NOT_UTF8, Secret, Url, is_encodable
from kclient.errors import ConfigError

__all__ = [
    "REQUIRED",
    "Boolean",
    "Choice",
    "Classes",
    "Decimal",
    "FilePath",
    "Kind",
    "List",
    "Number",
    "Password",
    "PythonObject",
    "Setting",
    "Text",
    "WebAddress",
    "same_setting",
    "setting",
]

REQUIRED: Any = object()
"""The default of settings that have to be given."""

_SAME: Any = object()
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


@dataclass(frozen=True)
class Kind:
    """Reads and checks the values of a setting."""

    @property
    def text(self) -> str:
        """What is allowed, for the reference and for error messages."""
        raise NotImplementedError

    def parse(self, value: Any) -> Any:
        """The value in its Python type.

        Raises:
            ValueError: If it is not allowed; the text says what is.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Number(Kind):
    """A whole number in a range."""

    low: int = -_LONG_MAX - 1
    high: int = _INT_MAX
    also: int | None = None

    @property
    def text(self) -> str:
        high = "" if self.high in (_INT_MAX, _LONG_MAX) else f" to {self.high}"
        low = f"{self.low}" if self.low > -_INT_MAX - 1 else ""
        text = f"whole number, {low}{high or ' or more'}" if low else "whole number"
        return text if self.also is None else f"{text}, or {self.also}"

    def parse(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(self.text)
        try:
            number = int(_plain(value))
        except ValueError:
            raise ValueError(self.text) from None
        if not self.low <= number <= self.high and number != self.also:
            untold = number > self.high and self.high in (_INT_MAX, _LONG_MAX)  # goes without saying, until it matters
            raise ValueError(f"{self.text}, and {self.high} at most" if untold else self.text)
        return number


@dataclass(frozen=True)
class Decimal(Kind):
    """A number with a fraction, in a range."""

    low: float = float("-inf")
    high: float = float("inf")

    @property
    def text(self) -> str:
        return "number" if self.low == float("-inf") else f"number from {self.low:g} to {self.high:g}"

    def parse(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(self.text)
        try:
            number = float(_plain(value))
        except (ValueError, OverflowError):
            raise ValueError(self.text) from None
        if not self.low <= number <= self.high:
            raise ValueError(self.text)
        return number


@dataclass(frozen=True)
class Boolean(Kind):
    """True or false."""

    @property
    def text(self) -> str:
        return "true or false"

    def parse(self, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        raise ValueError(self.text)


@dataclass(frozen=True)
class Text(Kind):
    """Any text."""

    empty: bool = True
    sent: bool = False
    """Whether it goes to somebody in UTF-8, which cannot carry lone surrogates, in a field of limited length."""

    @property
    def text(self) -> str:
        return "text" if self.empty else "text that is not empty"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not (self.empty or value):
            raise ValueError(self.text)
        if self.sent:
            _check_encodable(value)
            if len(value.encode()) > LONGEST_TEXT:
                raise ValueError(f"text of {LONGEST_TEXT} bytes at most in UTF-8")
        return value.strip()


@dataclass(frozen=True)
class FilePath(Kind):
    """The path of a file: a text, or an object that is one (`os.PathLike`)."""

    @property
    def text(self) -> str:
        return "path, as text or `pathlib.Path`"

    def parse(self, value: Any) -> str:
        if isinstance(value, os.PathLike):
            path = os.fspath(value)
            if isinstance(path, str):
                return path
        if not isinstance(value, str):
            raise ValueError(self.text)
        return value.strip()


@dataclass(frozen=True)
class Password(Kind):
    """A text that is never shown: a `Secret`."""

    exact: bool = False
    """Whether blanks around it belong to it; the Java client cuts them off."""

    @property
    def text(self) -> str:
        return "text"

    def parse(self, value: Any) -> Secret:
        if not isinstance(value, str | Secret):
            raise ValueError(self.text)
        _check_encodable(value)
        if isinstance(value, Secret):
            return value
        return Secret(value if self.exact else value.strip())


@dataclass(frozen=True)
class WebAddress(Kind):
    """The address of a web service: a `Url`, whose query is not shown."""

    @property
    def text(self) -> str:
        return "text"

    def parse(self, value: Any) -> Url:
        if not isinstance(value, str):
            raise ValueError(self.text)
        _check_encodable(value)
        return Url(value.strip())


@dataclass(frozen=True)
class Choice(Kind):
    """One of some words; upper and lower case are not told apart, unless they are to be `exact`.

    `meanings` gives words a value of another type.
    """

    choices: tuple[str, ...]
    meanings: Mapping[str, Any] | None = None
    exact: bool = False

    @property
    def text(self) -> str:
        return "one of " + ", ".join(f"`{choice}`" if choice else "empty" for choice in self.choices)

    def parse(self, value: Any) -> Any:
        word = "" if isinstance(value, bool) else str(value).strip()
        for choice in self.choices:
            if choice == word or (not self.exact and choice.lower() == word.lower()):
                return choice if self.meanings is None else self.meanings[choice]
        raise ValueError(self.text)


@dataclass(frozen=True)
class List(Kind):
    """Texts: a list, or one text with commas between them; only `choices`, if there are any."""

    choices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        if self.choices:
            return "some of " + ", ".join(f"`{choice}`" for choice in self.choices)
        return "list, or text with commas"

    def parse(self, value: Any) -> tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, Iterable) or isinstance(parts, bytes):
            raise ValueError(self.text)
        parts = [part for part in parts]  # noqa: C416 - `list` believes the length that an object tells
        if not all(isinstance(part, str) for part in parts):
            raise ValueError(self.text)
        items = tuple(part.strip() for part in parts if part.strip())
        if self.choices and not set(items) <= set(self.choices):
            raise ValueError(self.text)
        return items


@dataclass(frozen=True)
class PythonObject(Kind):
    """A Python class, instance or function, or the name of something built in.

    `names` maps the Java classes that have a counterpart here to its name.
    """

    what: str
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    strict: bool = True  # whether other names are refused; else the room that resolves them does so

    @property
    def text(self) -> str:
        short = sorted(set(self.names.values()))
        known = f", or one of {', '.join(f'`{name}`' for name in short)}" if short else ""
        java = " (or the Java class)" if any(name != ours for name, ours in self.names.items()) else ""
        return f"{self.what}{known}{java}"

    def parse(self, value: Any) -> Any:
        if not isinstance(value, str):
            if isinstance(value, bool | int | float | bytes):
                raise ValueError(self.text)
            return value
        name = value.strip()
        for java, ours in self.names.items():
            if name == java or name == java.rsplit(".", 1)[-1]:
                return ours
        if not self.strict or name in self.names.values():
            return name
        raise ValueError(self.text)


@dataclass(frozen=True)
class Classes(Kind):
    """Several of `PythonObject`: a list, one object, or one text with commas."""

    item: PythonObject

    @property
    def text(self) -> str:
        return f"list of: {self.item.text}"

    def parse(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            value = [part for part in value.split(",") if part.strip()]
        parts = value if isinstance(value, list | tuple) else [value]
        try:
            return tuple(self.item.parse(part) for part in parts)
        except ValueError:
            raise ValueError(self.text) from None


@dataclass(frozen=True)
class Setting:
    """One setting of a client."""

    name: str
    """Kafka's name, with dots."""
    kind: Kind
    default: Any
    doc: str
    served: bool = True
    """Whether kclient does what it says; if not, only the default is accepted."""
    served_values: tuple[Any, ...] | None = None
    """The values that are served, if not all are."""
    java_default: Any = _SAME
    """The Java client's default, see `differs_from_java`."""
    own: bool = False
    """Whether it is kclient's own, and unknown to the Java client."""

    @property
    def differs_from_java(self) -> bool:
        """Whether our default is not the Java client's."""
        return self.java_default is not _SAME

    @property
    def required(self) -> bool:
        """Whether it has to be given."""
        return self.default is REQUIRED

    @property
    def attribute(self) -> str:
        """Its name as an argument and attribute."""
        return self.name.replace(".", "_")

    def parse(self, value: Any, written: Any = None) -> Any:
        """The value in its Python type; None stands for the default.

        Args:
            value: What was given.
            written: How that was written, with variables: this may be shown, and what became of it may not.

        Raises:
            ConfigError: If it is not allowed.
        """
        if value is None:
            return self.default
        if self.default is None and value == "":
            return None  # an empty line in a properties file
        try:
            return self.kind.parse(value)
        except ValueError as error:
            # a password that was put into the place of another setting of security must not be shown either
            misplaced = isinstance(value, str) and self.name.startswith(("sasl.", "ssl."))
            hidden = misplaced or isinstance(self.kind, WebAddress | Password)
            told = "" if hidden else f" = {shown(value if written is None else written)}"
            raise ConfigError(f"{self.name}{told}: expected {error}") from None

    def serves(self, value: Any) -> bool:
        """Whether kclient does what this value asks for."""
        if value == self.default or value is None:
            return True
        return self.served and (self.served_values is None or value in self.served_values)


def setting(
    kind: Kind,
    default: Any,
    doc: str,
    *,
    served: bool = True,
    served_values: tuple[Any, ...] | None = None,
    java_default: Any = _SAME,
    own: bool = False,
) -> Any:
    """Declares a setting as a field of a configuration dataclass; its name is the field's, with dots for underscores.

    Args:
        kind: Reads and checks values.
        default: In its Python type; `REQUIRED` if it has to be given.
        doc: One or two sentences.
        served: See `Setting`.
        served_values: See `Setting`.
        java_default: See `Setting`.
        own: See `Setting`.
    """
    facts = {"kind": kind, "doc": " ".join(doc.split()), "served": served, "served_values": served_values}
    facts |= {"java_default": java_default, "own": own}
    if default is REQUIRED:
        return dataclasses.field(metadata=facts)
    return dataclasses.field(default=default, metadata=facts)


def same_setting(of: type[Any], attribute: str) -> Any:
    """Declares a setting that another configuration dataclass has as well, with the same default and meaning.

    Args:
        of: That class.
        attribute: The setting's name there.
    """
    found = next(field for field in dataclasses.fields(of) if field.name == attribute)
    return dataclasses.field(default=found.default, metadata=found.metadata)


def _plain(value: float | str) -> float | str:
    if isinstance(value, str) and "_" in value:  # Python's own way to write numbers
        raise ValueError(value)
    return value


def _check_encodable(value: str | Secret) -> None:
    if not is_encodable(value):
        raise ValueError(f"text in UTF-8, not {NOT_UTF8}")
