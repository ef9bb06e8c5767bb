"""What users pass to producer, consumer and admin client: checked, and brought into one form.

A wrong argument is refused by the call that it was given to, in one sentence that says what was expected. What passes
here fits into the protocol's fields, so that no background task trips over it later.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping
from inspect import CO_COROUTINE
from typing import Any, Final, TypeVar

from kclient.errors import InvalidTopicError
from kclient.types import Offset, OffsetAndMetadata, Partition, TopicPartition

V = TypeVar("V")
W = TypeVar("W")

API_TIMEOUT = "for default.api.timeout.ms"
"""What `timeout=None` means to most calls."""
AS_LONG_AS_IT_TAKES = "to wait as long as it takes"
"""What it means to those that end by themselves."""

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
_LONGEST_SHOWN: Final = 300
_LONGEST_WAIT: Final = 1e300  # below what no float can tell
_LONGEST_TOPIC: Final = 249
"""Characters that a topic's name may have, in any Kafka."""
LONGEST_TEXT: Final = 32_767
"""Bytes of UTF-8 that a text may have in a request."""

# ------------------------------------------------------------------ saying what was wrong


class _Brief(reprlib.Repr):
    """Representations that fit into a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = 100

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value) if len(value) <= self.maxstring else f"{value[: self.maxstring]!r}..."


_brief = _Brief()


def shown(value: Any) -> str:
    """A value that was refused, as the sentence shows it: short, whatever it is and whatever its own code does."""
    try:
        text = _brief.repr(value)
    except Exception:  # noqa: BLE001 - the user's code, or a number with too many digits
        return f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def brief(text: str) -> str:
    """A text as it is, where it is short; for names in sentences."""
    return text if len(text) <= _brief.maxstring else shown(text)


# ------------------------------------------------------------------ texts


def check_text(value: Any, what: str) -> None:
    """Raise if a text cannot be sent.

    Args:
        value: What the user gave.
        what: What it is, as the start of the error's sentence: `a group's id`, say.

    Raises:
        TypeError: It is not text.
        ValueError: UTF-8 cannot carry it, or it is too long.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} is text, not {shown(value)}")
    if len(value) * 4 <= LONGEST_TEXT and value.isascii():
        return
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} is text that UTF-8 can carry, not {shown(value)} (lone surrogates)") from None
    if size > LONGEST_TEXT:
        raise ValueError(f"{what} has {LONGEST_TEXT} bytes at most in UTF-8, not {size}")


def check_topic(topic: Any) -> None:
    """Raise if this cannot be a topic's name; the broker looks at the characters.

    Raises:
        TypeError: It is not text.
        InvalidTopicError: It is empty, or cannot be sent.
    """
    if not isinstance(topic, str):
        raise TypeError(f"a topic is named by a str, not by {type(topic).__name__}")
    if not topic:
        raise InvalidTopicError("A topic's name must not be empty")
    try:
        _check_name(topic)
    except ValueError as error:
        raise InvalidTopicError(str(error)) from None


def _check_name(topic: str) -> None:
    check_text(topic, "a topic's name")
    if len(topic) > _LONGEST_TOPIC:
        raise ValueError(f"a topic's name has {_LONGEST_TOPIC} characters at most, not {len(topic)}")


def as_topics(values: Iterable[str] | str) -> list[str]:
    """Names of topics in a list; a single one is one.

    Raises:
        TypeError: It is something else than names.
        InvalidTopicError: A name is empty, or cannot be sent.
    """
    if isinstance(values, str):
        values = [values]
    if not isinstance(values, Iterable) or isinstance(values, bytes | bytearray | memoryview):
        raise TypeError(f"topics are given as a name, a list of names or a compiled pattern; not {shown(values)}")
    names = [name for name in values]  # noqa: C416 - `list` believes the length that an object tells
    for name in names:
        check_topic(name)
    return names


def as_names(values: Iterable[str], what: str, *, empty: bool = False) -> list[str]:
    """Names in a list.

    Args:
        values: What the user gave.
        what: What is named, as the start of the error's sentence: `topics`, say.
        empty: Whether a name may be empty.

    Raises:
        TypeError: It is a single name, or something else than names.
        ValueError: A name is empty, or cannot be sent.
    """
    if isinstance(values, str):
        raise TypeError(f"{what} are given in a list, as in [{shown(values)}]; not {shown(values)}")
    if not isinstance(values, Iterable) or isinstance(values, bytes | bytearray | memoryview):
        raise TypeError(f"{what} are given in a list of names, not {shown(values)}")
    names = [name for name in values]  # noqa: C416
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what} are named by strings, not {shown(name)}")
        if not name and not empty:
            raise ValueError(f"{what} have names that are not empty, not {shown(names)}")
        check_text(name, f"the name of one of the {what}")
    return names


# ------------------------------------------------------------------ partitions and offsets


def as_partition(value: Partition) -> TopicPartition:
    """A partition from either form.

    Raises:
        TypeError: It is neither.
        ValueError: The topic is empty or cannot be sent, or the number is none that a partition has.
    """
    match value:
        case (str(topic), int(number)) if not isinstance(number, bool):
            if not topic or not 0 <= number <= INT32_MAX:
                raise ValueError(
                    f"a partition has a topic that is not empty and a number from 0 on, not {shown(value)}"
                )
            _check_name(topic)
            return value if isinstance(value, TopicPartition) else TopicPartition(topic, number)
    raise TypeError(f"a partition is TopicPartition(topic, number) or such a pair, not {shown(value)}")


def as_partitions(values: Iterable[Partition]) -> list[TopicPartition]:
    """Partitions from either form.

    Raises:
        TypeError: These are none, or a single one.
        ValueError: A topic or number is none that a partition has.
    """
    if isinstance(values, TopicPartition) or not isinstance(values, Iterable):
        raise TypeError(f"partitions are given in a list, as in [TopicPartition('t', 0)]; not {shown(values)}")
    return [as_partition(value) for value in values]


def by_partition(given: Mapping[Any, V], read: Callable[[V], W], what: str) -> dict[TopicPartition, W]:
    """A mapping whose keys are partitions, with values as `read` gives them.

    Args:
        given: What the user gave.
        read: Checks a value and brings it into its form.
        what: What is given, as the start of the error's sentence: `offsets`, say.

    Raises:
        TypeError: It is not a mapping, or a key is not a partition.
        ValueError: The topic or number of a key is none that a partition has.
    """
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{what} are a mapping from partitions, as in {{TopicPartition('t', 0): …}}; not {shown(given)}"
        )
    return {as_partition(partition): read(value) for partition, value in given.items()}


def as_offset(value: Offset, purpose: str = "commit") -> OffsetAndMetadata:
    """An offset to commit, or to `purpose`, from either form; NumPy's whole numbers are taken too.

    Raises:
        TypeError: It is neither.
        ValueError: It is negative or too large, or its metadata or leader epoch cannot be sent.
    """
    given = value.offset if isinstance(value, OffsetAndMetadata) else value
    offset = index_of(given)
    if offset is None:
        raise TypeError(f"an offset is a whole number or OffsetAndMetadata, not {shown(value)}")
    if offset < 0:
        raise ValueError(f"cannot {purpose} the negative offset {shown(offset)}")
    if offset > INT64_MAX:
        raise ValueError(f"cannot {purpose} the offset {shown(offset)}: the greatest is {INT64_MAX}")
    if not isinstance(value, OffsetAndMetadata):
        return OffsetAndMetadata(offset)
    check_text(value.metadata, "the metadata of an offset")
    epoch = value.leader_epoch
    if epoch is not None and not 0 <= whole_number(epoch, "the leader epoch of an offset") <= INT32_MAX:
        raise ValueError(f"the leader epoch of an offset is from 0 to {INT32_MAX}, or None; not {shown(epoch)}")
    if type(given) is int:
        return value
    return OffsetAndMetadata(offset, value.metadata, epoch)


def as_timestamp(value: Any) -> int:
    """A time in milliseconds since the epoch.

    Raises:
        TypeError: It is not a whole number.
        ValueError: It is negative or too large.
    """
    timestamp = index_of(value)
    if timestamp is None:
        raise TypeError(f"timestamps are whole milliseconds since the epoch, not {shown(value)}")
    if not 0 <= timestamp <= INT64_MAX:
        raise ValueError(f"timestamps are milliseconds since the epoch, from 0 to {INT64_MAX}; not {shown(value)}")
    return timestamp


def index_of(value: Any) -> int | None:
    """The value as an int, NumPy's too; None if it is not a whole number: neither a bool is one, nor 1.0."""
    if isinstance(value, bool):
        return None
    try:
        return int(operator.index(value))
    except TypeError:
        return None


def whole_number(value: Any, what: str) -> int:
    """A whole number, NumPy's too; `what` begins the error's sentence.

    Raises:
        TypeError: It is not one.
    """
    number = index_of(value)
    if number is None:
        raise TypeError(f"{what} is a whole number, not {shown(value)}")
    return number


def as_count(value: Any, what: str) -> int | None:
    """How many, or None.

    Raises:
        TypeError: It is not a whole number.
        ValueError: It is below 1.
    """
    if value is None:
        return None
    number = whole_number(value, what)
    if number < 1:
        raise ValueError(f"{what} is a number from 1 on, or None; not {shown(value)}")
    return number


# ------------------------------------------------------------------ the rest


def check_timeout(timeout: Any, none: str | None = API_TIMEOUT, hint: str = "") -> None:
    """Raise if this is not a number of seconds that one can wait.

    Args:
        timeout: What the user gave.
        none: What None stands for, as part of the error's sentence; None if it is not allowed.
        hint: The end of the sentence: what to do instead.

    Raises:
        TypeError: It is not a number.
        ValueError: It is negative, none (nan), or more than a float can tell.
    """
    if timeout is None and none is not None:
        return
    number = isinstance(timeout, int | float)
    if number and 0 <= timeout <= _LONGEST_WAIT:  # which nan is not
        return
    if number and timeout == math.inf:
        return
    otherwise = "" if none is None else f", or None {none}"
    text = f"timeout is a number of seconds, 0 or more{otherwise}; not {shown(timeout)}{hint}"
    raise ValueError(text) if number else TypeError(text)


def check_choice(value: Any, what: str) -> None:
    """Raise `TypeError` unless this is True, False or None."""
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{what} is True, False or None, not {shown(value)}")


def check_flag(value: Any, what: str) -> None:
    """Raise `TypeError` unless this is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} is True or False, not {shown(value)}")


def in_seconds(seconds: float) -> str:
    """A time for texts, as `1.5 s`: what was left of a timeout is told with few digits."""
    return f"{seconds:.0f} s" if math.isfinite(seconds) and abs(seconds) >= 100 else f"{seconds:.3g} s"


def check_plain_callback(callback: Any, name: str) -> None:
    """As `check_callback`, and raise if it is a coroutine function, which nobody would await.

    Raises:
        TypeError: It cannot be called, or would have to be awaited.
    """
    check_callback(callback, name)
    code = getattr(callback, "__code__", None)  # `inspect` takes a microsecond
    if code is not None and code.co_flags & CO_COROUTINE:
        raise TypeError(f"{name} is a plain function, which is not awaited; {shown(callback)} is a coroutine function")


def check_callback(callback: Any, name: str) -> None:
    """Raise if something that is to be called cannot be; None is fine.

    Raises:
        TypeError: It cannot be called.
    """
    if callback is not None and not callable(callback):
        raise TypeError(f"{name} is a function to be called, or None; not {shown(callback)}")
