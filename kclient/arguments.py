"""What users pass to producer, consumer and admin client: checked, and brought into one form.

A wrong argument is refused by the call that it was given to, in one sentence that says what was expected.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kclient.errors import InvalidTopicError
from kclient.types import Offset, OffsetAndMetadata, Partition, TopicPartition

V = TypeVar("V")
W = TypeVar("W")

API_TIMEOUT = "for default.api.timeout.ms"
"""What `timeout=None` means to most calls."""
AS_LONG_AS_IT_TAKES = "to wait as long as it takes"
"""What it means to those that end by themselves."""


def as_partition(value: Partition) -> TopicPartition:
    """A partition from either form.

    Raises:
        TypeError: It is neither.
        ValueError: The topic is empty or the number negative.
    """
    match value:
        case (str(topic), int(number)):
            if not topic or number < 0:
                raise ValueError(f"a partition has a topic that is not empty and a number from 0 on, not {value!r}")
            return value if isinstance(value, TopicPartition) else TopicPartition(topic, number)
    raise TypeError(f"a partition is TopicPartition(topic, number) or such a pair, not {value!r}")


def as_partitions(values: Iterable[Partition]) -> list[TopicPartition]:
    """Partitions from either form.

    Raises:
        TypeError: These are none, or a single one.
        ValueError: A topic is empty or a number negative.
    """
    if isinstance(values, TopicPartition) or not isinstance(values, Iterable):
        raise TypeError(f"partitions are given in a list, as in [TopicPartition('t', 0)]; not {values!r}")
    return [as_partition(value) for value in values]


def by_partition(given: Mapping[Any, V], read: Callable[[V], W], what: str) -> dict[TopicPartition, W]:
    """A mapping whose keys are partitions, with values as `read` gives them.

    Args:
        given: What the user gave.
        read: Checks a value and brings it into its form.
        what: What is given, as the start of the error's sentence: `offsets`, say.

    Raises:
        TypeError: It is no mapping, or a key is no partition.
        ValueError: The topic of a key is empty or its number negative.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} are a mapping from partitions, as in {{TopicPartition('t', 0): …}}; not {given!r}")
    return {as_partition(partition): read(value) for partition, value in given.items()}


def as_offset(value: Offset, purpose: str = "commit") -> OffsetAndMetadata:
    """An offset to commit, or to `purpose`, from either form; NumPy's whole numbers are taken too.

    Raises:
        TypeError: It is neither.
        ValueError: It is negative.
    """
    found = value
    if not isinstance(found, OffsetAndMetadata):
        try:
            found = OffsetAndMetadata(operator.index(found))
        except TypeError:
            raise TypeError(f"an offset is a whole number or OffsetAndMetadata, not {value!r}") from None
    if found.offset < 0:
        raise ValueError(f"cannot {purpose} the negative offset {found.offset}")
    return found


def whole_number(value: Any, what: str) -> int:
    """A whole number, NumPy's too; `what` begins the error's sentence.

    Raises:
        TypeError: It is none.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is a whole number, not {value!r}") from None


def check_topic(topic: Any) -> None:
    """Raise if this cannot be a topic's name; the broker looks at the characters.

    Raises:
        TypeError: It is no text.
        InvalidTopicError: It is empty.
    """
    if not isinstance(topic, str):
        raise TypeError(f"a topic is named by a str, not by {type(topic).__name__}")
    if not topic:
        raise InvalidTopicError("A topic's name must not be empty")


def as_topics(values: Iterable[str] | str) -> list[str]:
    """Names of topics in a list; a single one is one.

    Raises:
        TypeError: It is something else than names.
        InvalidTopicError: A name is empty.
    """
    if isinstance(values, str):
        values = [values]
    if not isinstance(values, Iterable) or isinstance(values, bytes | bytearray | memoryview):
        raise TypeError(f"topics are given as a name, a list of names or a compiled pattern; not {values!r}")
    names = list(values)
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
        ValueError: A name is empty.
    """
    if isinstance(values, str):
        raise TypeError(f"{what} are given in a list, as in [{values!r}]; not {values!r}")
    if not isinstance(values, Iterable) or isinstance(values, bytes | bytearray | memoryview):
        raise TypeError(f"{what} are given in a list of names, not {values!r}")
    names = list(values)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what} are named by strings, not {name!r}")
        if not name and not empty:
            raise ValueError(f"{what} have names that are not empty, not {names!r}")
    return names


def check_timeout(timeout: Any, none: str | None = API_TIMEOUT, hint: str = "") -> None:
    """Raise if this is no number of seconds that one can wait.

    Args:
        timeout: What the user gave.
        none: What None stands for, as part of the error's sentence; None if it is not allowed.
        hint: The end of the sentence: what to do instead.

    Raises:
        TypeError: It is no number.
        ValueError: It is negative, or none (nan).
    """
    if timeout is None and none is not None:
        return
    number = isinstance(timeout, int | float)
    if number and timeout >= 0:  # which nan is not
        return
    otherwise = "" if none is None else f", or None {none}"
    text = f"timeout is a number of seconds, 0 or more{otherwise}; not {timeout!r}{hint}"
    raise ValueError(text) if number else TypeError(text)


def in_seconds(seconds: float) -> str:
    """A time for texts, as `1.5 s`: what was left of a timeout is told with few digits."""
    return f"{seconds:.0f} s" if math.isfinite(seconds) and abs(seconds) >= 100 else f"{seconds:.3g} s"


def check_callback(callback: Any, name: str) -> None:
    """Raise if something that is to be called cannot be; None is fine.

    Raises:
        TypeError: It cannot be called.
    """
    if callback is not None and not callable(callback):
        raise TypeError(f"{name} is a function to be called, or None; not {callback!r}")
