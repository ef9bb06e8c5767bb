"""What goes wrong in HTP, as Kafka's protocol says it: one table for all handlers.

A failure that passes must reach producers, consumers and members of groups under a code that makes them try again.
Which one that is depends on what the client takes the gateway for, since Java's clients look only for the codes they
expect there, and take any other for fatal: KAFKA_STORAGE_ERROR ends a producer that asks for its id, and a
consumer that joins its group. Of a controller they expect none for its store: whoever changes topics or settings is
told KAFKA_STORAGE_ERROR, and may ask again.
"""

from __future__ import annotations

import logging
import time
from enum import Enum
from typing import Any, Final

from kclient.errors import ClosedError, ErrorCode, KafkaError
from kclient.htp.errors import (
    ConflictError,
    FencedError,
    HtpError,
    PositionError,
    UnknownDomainError,
    UnknownTopicError,
)

__all__ = ["Role", "code_of", "put_error", "text_of"]

logger: logging.Logger = logging.getLogger("kclient.gateway")


_LONGEST: Final = 1_000
_BEGINNING: Final = 700
"""Of those characters."""


class Role(Enum):
    """What a client takes the gateway for when it sends a request."""

    LEADER = "leader"
    """Of a partition: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords; and all that only reads."""
    GROUPS = "groups"
    """The coordinator of a group."""
    PRODUCERS = "producers"
    """Who gives out producer ids. Old producers ask for the coordinator of no transaction when they are told that
    there is none, so they are told that it is loading."""
    CONTROLLER = "controller"
    """Who changes topics and settings."""


_CODES: Final[tuple[tuple[type[KafkaError], dict[Role, ErrorCode]], ...]] = (
    (
        PositionError,
        {
            Role.LEADER: ErrorCode.OFFSET_OUT_OF_RANGE,
        },
    ),
    (
        # another gateway has taken over: clients look again who it is
        FencedError,
        {
            Role.LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
            Role.GROUPS: ErrorCode.NOT_COORDINATOR,
            Role.PRODUCERS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            Role.CONTROLLER: ErrorCode.NOT_CONTROLLER,
        },
    ),
    (
        UnknownTopicError,
        {Role.LEADER: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Role.CONTROLLER: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    ),
    (
        UnknownDomainError,
        {Role.LEADER: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Role.CONTROLLER: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    ),
    (
        # somebody else was faster: the next try finds what is there now
        ConflictError,
        {Role.CONTROLLER: ErrorCode.NOT_CONTROLLER},
    ),
    (
        HtpError,
        {
            Role.LEADER: ErrorCode.KAFKA_STORAGE_ERROR,
            Role.GROUPS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
            Role.PRODUCERS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            Role.CONTROLLER: ErrorCode.KAFKA_STORAGE_ERROR,
        },
    ),
    (
        # the gateway is closing: another one, or the same after a restart, goes on
        ClosedError,
        {
            Role.LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
            Role.GROUPS: ErrorCode.NOT_COORDINATOR,
            Role.PRODUCERS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            Role.CONTROLLER: ErrorCode.NOT_CONTROLLER,
        },
    ),
)
"""By classes of errors, the first that fits; a role without a code of its own is looked for further down."""


class _Failures:
    """The log's lines about a store that fails: the same again within a second is left out."""

    SPACE_S: Final = 1.0

    def __init__(self) -> None:
        self._text = ""
        self._until = float("-inf")

    def log(self, error: KafkaError) -> None:
        text, now = str(error), time.monotonic()
        if text != self._text or now >= self._until:
            self._text, self._until = text, now + self.SPACE_S
            logger.error("a request failed: %s", text, exc_info=None if isinstance(error, HtpError) else error)


_failures: Final = _Failures()


def code_of(error: KafkaError, role: Role = Role.LEADER, *, told: bool = False) -> int:
    """The protocol's code of an error, for a client that takes the gateway for this.

    The client learns no more than the code of a failure of the store, so the log says what it was, unless it was
    `told` there already.
    """
    if error.code is not None:
        return error.code
    for kind, codes in _CODES:
        if isinstance(error, kind) and role in codes:
            if kind is HtpError and not told:
                _failures.log(error)
            return codes[role]
    if not told:
        _failures.log(error)
    return ErrorCode.UNKNOWN_SERVER_ERROR


def put_error(row: Any, error: KafkaError, role: Role = Role.LEADER) -> None:
    """Say in a row of a response what went wrong, with a text where the row has room for it."""
    row.error_code = code_of(error, role)
    if hasattr(row, "error_message"):
        row.error_message = text_of(error.message)


def text_of(message: str) -> str:
    """An error's text as a response has room for it.

    What the client has named is part of it, and may be as long as a text of the protocol can be: with a word more it
    could not be sent.
    """
    if len(message) <= _LONGEST:
        return message
    return f"{message[:_BEGINNING]} … {message[_BEGINNING - _LONGEST :]}"
