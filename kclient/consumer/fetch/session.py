"""Fetch sessions (KIP-227): after the first fetch from a broker only what changed is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kclient.errors import ErrorCode
from kclient.protocol.messages import FetchRequestForgottenTopic, FetchRequestPartition, FetchRequestTopic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kclient.protocol.messages import FetchResponse
    from kclient.types import TopicPartition

_NO_SESSION = 0
_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
_MAX_EPOCH = 2**31 - 1
SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""What a broker answers where it does not have a session any more, or not like that."""


class Asked(NamedTuple):
    """What is asked of one partition; the broker remembers it in a session."""

    topic_id: bytes
    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int
    max_bytes: int


@dataclass(slots=True)
class SessionPart:
    """What a session contributes to a request."""

    session_id: int
    epoch: int
    topics: list[FetchRequestTopic]
    forgotten: list[FetchRequestForgottenTopic]


class FetchSessionHandler:
    """The session with one broker; one request at a time is under way in it.

    Args:
        enabled: Whether to have a session at all; without one each request names every partition.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._id = _NO_SESSION
        self._epoch = _INITIAL_EPOCH if enabled else _FINAL_EPOCH
        self._known: dict[TopicPartition, Asked] = {}
        self._pending: dict[TopicPartition, Asked] = {}

    def plan(self, wanted: Mapping[TopicPartition, Asked]) -> SessionPart:
        """What to send in order to fetch exactly the wanted partitions."""
        if self._moved_id(wanted):
            self._restart()
        self._pending = dict(wanted)
        if self._epoch <= _INITIAL_EPOCH:
            return SessionPart(self._id, self._epoch, _topics(wanted.items()), [])
        changed = [(tp, asked) for tp, asked in wanted.items() if self._known.get(tp) != asked]
        gone = [(tp, asked) for tp, asked in self._known.items() if tp not in wanted]
        return SessionPart(self._id, self._epoch, _topics(changed), _forgotten(gone))

    def _moved_id(self, wanted: Mapping[TopicPartition, Asked]) -> bool:
        """Whether a topic was deleted and made anew: the session knows it by its old id."""
        return any((known := self._known.get(tp)) and known.topic_id != asked.topic_id for tp, asked in wanted.items())

    def close(self) -> SessionPart | None:
        """What to send so that the broker forgets the session; None if it has none."""
        part = SessionPart(self._id, _FINAL_EPOCH, [], []) if self._id != _NO_SESSION else None
        self._forget()
        return part

    def answered(self, response: FetchResponse) -> None:
        """The broker answered the planned request."""
        if response.error_code:
            self.failed(lost=response.error_code in SESSION_ERRORS)
        elif not self._enabled:
            return
        elif response.session_id == _NO_SESSION:
            self._forget()  # the broker has no room for a session now
        else:
            self._id = response.session_id
            self._epoch = 1 if self._epoch in {_INITIAL_EPOCH, _MAX_EPOCH} else self._epoch + 1
            self._known = self._pending

    def failed(self, *, lost: bool = False) -> None:
        """The request failed, so nobody knows what the session remembers: begin a new one in its place.

        Args:
            lost: Whether the broker does not have the session any more.
        """
        if lost:
            self._forget()
        else:
            self._restart()

    def _restart(self) -> None:
        """Close the session and open another with the next request."""
        self._epoch = _INITIAL_EPOCH if self._enabled else _FINAL_EPOCH
        self._known = {}

    def _forget(self) -> None:
        self._restart()
        self._id = _NO_SESSION


def _topics(partitions: Iterable[tuple[TopicPartition, Asked]]) -> list[FetchRequestTopic]:
    topics: dict[str, FetchRequestTopic] = {}
    for tp, asked in partitions:
        topic = topics.get(tp.topic)
        if topic is None:
            topic = topics[tp.topic] = FetchRequestTopic(topic=tp.topic, topic_id=asked.topic_id, partitions=[])
        topic.partitions.append(
            FetchRequestPartition(
                partition=tp.partition,
                current_leader_epoch=asked.leader_epoch,
                fetch_offset=asked.fetch_offset,
                last_fetched_epoch=asked.last_fetched_epoch,
                partition_max_bytes=asked.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(partitions: Iterable[tuple[TopicPartition, Asked]]) -> list[FetchRequestForgottenTopic]:
    topics: dict[str, FetchRequestForgottenTopic] = {}
    for tp, asked in partitions:
        topic = topics.get(tp.topic)
        if topic is None:
            topic = topics[tp.topic] = FetchRequestForgottenTopic(
                topic=tp.topic, topic_id=asked.topic_id, partitions=[]
            )
        topic.partitions.append(tp.partition)
    return list(topics.values())
