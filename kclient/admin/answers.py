"""What is made of answers: their codes, what they leave out, and what they say to a later attempt."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from kclient.errors import ErrorCode, KafkaError, UnknownServerError, error_for

_LACKING = re.compile(r"Request Request\(.*\) (?:needs ([A-Z_]+) permission|is not authorized)\.?", re.DOTALL)
"""What brokers say of rights that a user lacks: it shows the request with all that it consists of in Java."""

K = TypeVar("K")
R = TypeVar("R")


def failure(code: int, subject: str, message: str | None = None) -> KafkaError | None:
    """The error of a code, its text beginning with what it is about; None for no error."""
    if not code:
        return None
    lacking = _LACKING.fullmatch(message or "")
    if lacking is not None:
        message = f"this user needs the operation {lacking[1]} on the cluster" if lacking[1] else None
    text = message or error_for(code).message
    name = subject.partition(" ")[2].strip("'")
    # brokers often begin with it themselves: "Topic 'flights' already exists."
    told = name and text.lower().startswith((f"{subject} ".lower(), f"{subject.partition(' ')[0]} {name} ".lower()))
    return error_for(code, text if told else f"{subject}: {text}")


def check_code(code: int, subject: str, message: str | None = None) -> None:
    """Raises the error of a code, if it is one."""
    error = failure(code, subject, message)
    if error is not None:
        raise error


def check_retriable(code: int, subject: str) -> None:
    """Raises a code that another attempt may cure, so that `_retrying` makes one."""
    error = failure(code, subject)
    if error is not None and error.retriable:
        raise error


def as_told(kind: type[R], **attributes: object) -> R:
    """A value that a broker tells, with all attributes: brokers may have what its class refuses from users.

    An ACL that another client has made without a host, say, does not hide all others.
    """
    told = object.__new__(kind)
    for name, value in attributes.items():
        object.__setattr__(told, name, value)
    return told


def row_of(rows: Iterable[R], is_it: Callable[[R], bool], subject: str) -> R:
    """What an answer tells of one thing; what it tells of others nobody asked for.

    Raises:
        UnknownServerError: nothing.
    """
    for row in rows:
        if is_it(row):
            return row
    raise UnknownServerError(f"{subject}: the broker's answer does not tell of it")


def left_out(wanted: Iterable[K], told: Collection[K], name: Callable[[K], str] = str) -> dict[str, KafkaError]:
    """An error for each thing that an answer does not tell of, by its name: it is not taken for done.

    Args:
        wanted: what was asked for.
        told: what the answer tells of.
        name: the name of a thing in errors.
    """
    return {
        name(one): UnknownServerError(f"{name(one)}: the broker's answer does not tell what became of it")
        for one in wanted
        if one not in told
    }


def told_late(error: KafkaError) -> KafkaError:
    """An error that says that something is done already, with the hint at who may have done it."""
    text = f"{error.message} (An earlier attempt that got no answer may have done it.)"
    return error_for(error.code or 0, text)


class LateAnswers:
    """The attempts of one call: where an earlier one got no answer, it may have done what a later one finds done.

    Args:
        done: what brokers answer where it has been done already.
    """

    def __init__(self, done: type[KafkaError] | tuple[type[KafkaError], ...] = ()) -> None:
        self._done = done
        self._unanswered = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """An attempt is made in the block, which raises why it failed."""
        try:
            yield
        except KafkaError as error:
            told = self.hinted(error)
            if told is not error:
                raise told from None
            self._unanswered = self._unanswered or error.code is None or error.code == ErrorCode.REQUEST_TIMED_OUT
            raise

    def hinted(self, error: KafkaError) -> KafkaError:
        """An error of the answer; where an earlier attempt may have done what it says is done, it says so too."""
        return told_late(error) if self._unanswered and isinstance(error, self._done) else error
