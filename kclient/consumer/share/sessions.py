"""The share sessions of one consumer with all brokers, as a state machine free of I/O and clocks (KIP-932).

It says which requests are due, takes in the answers, and knows what became of each acknowledgement. Records are asked
for only while a poll wants some: what a broker holds for this consumer nobody else gets meanwhile.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from kclient.consumer.share.acquired import Acknowledgement, Acquired
from kclient.consumer.share.model import AcknowledgeType, SharePartition
from kclient.consumer.share.refusals import fetch_refused, not_answered, session_lost
from kclient.consumer.share.session import ShareSession
from kclient.errors import ErrorCode, KafkaError, KafkaTimeoutError, error_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kclient.cluster import ClusterSnapshot
    from kclient.consumer.share.acquired import ShareCommit
    from kclient.consumer.share.metrics import ShareMetrics
    from kclient.consumer.share.model import ShareFetchSettings
    from kclient.consumer.share.session import ShareRequest
    from kclient.types import TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer.share")

_LED_ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
_TOPIC_GONE = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INCONSISTENT_TOPIC_ID}
)
_FINAL = _LED_ELSEWHERE | _TOPIC_GONE
"""Errors after which the broker does not hold the records any more, though the error as such may pass."""
_PASSING = frozenset(
    {
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Errors of a whole fetch that nobody has to be told of: the session begins anew."""

_OVERDUE = 1.0
"""Seconds beyond `fetch.max.wait.ms` after which others have their turn though a broker has not answered."""


@dataclass(slots=True)
class ShareNews:
    """What the answers to requests have changed."""

    outcomes: list[tuple[Acknowledgement, KafkaError | None]] = field(default_factory=list)
    """Acknowledgements that were answered, or came to nothing."""
    leaders: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Who leads partitions now, and the epoch: the broker has told."""
    lost: list[tuple[int, SharePartition | None, KafkaError]] = field(default_factory=list)
    """Which node holds nothing any more of a partition, or of any, and why."""
    refresh_metadata: bool = False
    error: KafkaError | None = None
    """What the next poll is to raise."""


class ShareSessions:
    """Fetches and acknowledges for one consumer.

    Args:
        settings: How to fetch.
        metrics: Count answers, bytes and acknowledgements.
    """

    def __init__(self, settings: ShareFetchSettings, metrics: ShareMetrics) -> None:
        self.settings: ShareFetchSettings = settings
        self.buffer: deque[Acquired] = deque()
        """What was acquired and not opened yet."""
        self.wanted: bool = False
        """Whether a poll waits for records, or found none."""
        self.lock_timeout_ms: int | None = None
        """How long brokers hold records for this consumer, as they last told."""
        self._metrics = metrics
        self._sessions: dict[int, ShareSession] = {}
        self._ending = False
        """Whether the sessions are to end."""
        self._turn = 0

    def _session(self, node_id: int) -> ShareSession:
        if node_id not in self._sessions:
            self._sessions[node_id] = ShareSession(node_id, self.settings)
        return self._sessions[node_id]

    # ------------------------------------------------------------------ what the user says

    def acknowledge(
        self, found: Iterable[Acquired], deadline: float, news: ShareNews, commit: ShareCommit | None = None
    ) -> None:
        """What the user has said of records is to be told their brokers.

        Args:
            found: Where something was said.
            deadline: When to try no more.
            news: Takes what comes to nothing.
            commit: The call that waits for the answers.
        """
        for acquired in found:
            if not acquired.has_chosen:
                continue
            one = Acknowledgement(acquired, acquired.take_chosen(), deadline, commit)
            if commit is not None:
                commit.waiting += 1
            session = self._session(acquired.node_id)
            lost = acquired.lost
            if lost is None and acquired.session != session.number:
                lost = session_lost(acquired.node_id, None)
            if lost is not None:
                self._over(one, lost, 0.0, news)
            else:
                session.waiting.append(one)

    @property
    def busy(self) -> bool:
        """Whether acknowledgements are waiting for an answer, or a session for its end."""
        return any(
            session.waiting
            or (session.request is not None and (self._ending or session.request.told))
            or (self._ending and session.is_open)
            for session in self._sessions.values()
        )

    def end(self) -> None:
        """The sessions are to end, when the acknowledgements have been taken: brokers give back what they hold."""
        self.wanted = False
        self.buffer.clear()
        self._ending = True

    def begin_again(self) -> None:
        """After `end`: sessions may begin."""
        self._ending = False

    def give_up(self, error: KafkaError, news: ShareNews) -> None:
        """Nothing is sent or answered any more."""
        for session in self._sessions.values():
            told = session.request.told if session.request is not None else []
            session.request = None
            waiting, session.waiting = session.waiting, []
            for one in (*told, *waiting):
                self._over(one, error, 0.0, news)

    # ------------------------------------------------------------------ what to send

    def plan(
        self,
        assigned: Mapping[TopicPartition, bytes],
        snapshot: ClusterSnapshot,
        member_id: str,
        now: float,
        news: ShareNews,
    ) -> tuple[list[ShareRequest], float]:
        """The requests that are due, and when others will be unless something happens before.

        Args:
            assigned: What is to be read, with the topics' ids.
            snapshot: Who leads what.
            member_id: Who this is.
            now: Monotonic time in seconds.
            news: Takes what was tried for too long.
        """
        led = self._by_leader(assigned, snapshot, news) if not self._ending else {}
        for node_id in led:
            self._session(node_id)
        requests: list[ShareRequest] = []
        due = inf
        for session in self._in_turn():
            self._expire(session, now, news)
            if session.request is not None:
                continue
            wake = self._plan_one(session, led.get(session.node_id, frozenset()), member_id, now, requests)
            due = min(due, wake, *(one.deadline for one in session.waiting))
        return requests, due

    def _plan_one(
        self,
        session: ShareSession,
        wanted: frozenset[SharePartition],
        member_id: str,
        now: float,
        requests: list[ShareRequest],
    ) -> float:
        if self._ending:
            if session.is_open:
                told, session.waiting = session.waiting, []
                requests.append(session.acknowledge(member_id, told, last=True))
            return inf
        due = min((one.retry_at for one in session.waiting), default=inf)
        told = [one for one in session.waiting if one.retry_at <= now]
        fetch = self.wanted and bool(wanted)
        if fetch and now < (free_at := self._limited_until(session)):
            due, fetch = min(due, free_at), False
        if fetch and now < session.retry_at:
            due, fetch = min(due, session.retry_at), False
        if told and session.is_open and not (fetch and not any(one.renews for one in told)):
            session.waiting = [one for one in session.waiting if one.retry_at > now]
            requests.append(session.acknowledge(member_id, told))
            return inf
        if fetch:
            if session.is_open:
                session.waiting = [one for one in session.waiting if one.retry_at > now]
            else:
                told = []  # a session has to be there first
            self._turn += 1
            session.served = self._turn
            session.asked_at = now
            session.overdue_at = now + self.settings.max_wait_ms / 1000 + _OVERDUE
            requests.append(session.fetch(member_id, wanted, told))
            return inf
        return due if due > now else inf

    def _in_turn(self) -> list[ShareSession]:
        """The sessions, first that which has waited longest for a fetch."""
        return sorted(self._sessions.values(), key=lambda session: session.served)

    def _limited_until(self, session: ShareSession) -> float:
        """Until when others have to answer, each of whom may give as many records as a poll returns at most."""
        if not self.settings.record_limit:
            return 0.0
        others = (other for other in self._sessions.values() if other is not session and other.request is not None)
        return max((other.overdue_at for other in others if other.request and other.request.fetches), default=0.0)

    def _expire(self, session: ShareSession, now: float, news: ShareNews) -> None:
        for one in [one for one in session.waiting if now >= one.deadline]:
            session.waiting.remove(one)
            self._over(
                one,
                KafkaTimeoutError(
                    f"{one.acquired.partition.tp}: the acknowledgement was not taken in time by node {session.node_id}"
                ),
                now,
                news,
            )

    def _by_leader(
        self, assigned: Mapping[TopicPartition, bytes], snapshot: ClusterSnapshot, news: ShareNews
    ) -> dict[int, frozenset[SharePartition]]:
        found: dict[int, set[SharePartition]] = defaultdict(set)
        for tp, topic_id in assigned.items():
            leader = snapshot.leader_id(tp)
            if leader is None or leader < 0 or snapshot.topic_id(tp.topic) != topic_id:
                news.refresh_metadata = True
                continue
            found[leader].add(SharePartition(topic_id, tp.partition, tp.topic))
        return {node_id: frozenset(partitions) for node_id, partitions in found.items()}

    # ------------------------------------------------------------------ answers

    def received(self, request: ShareRequest, response: Any, now: float, news: ShareNews) -> None:
        """The answer to a request that `plan` gave out."""
        session = self._session(request.node_id)
        if session.request is not request:
            return  # given up
        lock_timeout_ms = response.acquisition_lock_timeout_ms
        if lock_timeout_ms > 0:
            self.lock_timeout_ms = lock_timeout_ms
        if response.error_code:
            self._refused(session, request, response.error_code, response.error_message, now, news)
            return
        number, failures = session.number, session.failures
        session.succeeded(request)
        if request.fetches:
            size, records = _brought(response)
            self._metrics.answered(size, records, response.throttle_time_ms, now - session.asked_at)
        refused = 0
        answered: dict[tuple[bytes, int], tuple[int, str | None]] = {}
        for topic_id, answer in _answers(response):
            place = topic_id, answer.partition_index
            if request.fetches:
                answered[place] = answer.acknowledge_error_code, answer.acknowledge_error_message
                self._take_in(session, number, request, place, answer, now, news)
                refused += bool(answer.error_code)
            else:
                answered[place] = answer.error_code, answer.error_message
                if answer.error_code in _FINAL:
                    self._moved(request, place, answer, news)
        if refused and refused >= len(request.partitions):  # so the broker did not wait for records either
            session.hold_back(failures + 1, now + self.settings.retry_backoff.seconds(failures + 1))
        for one in request.told:
            partition = one.acquired.partition
            place = partition.topic_id, partition.partition
            if place in answered:
                self._answered(session, one, *answered[place], now, news)
            else:
                self._over(one, not_answered(request.node_id, partition.tp), now, news)
        if request.ends:
            self._lose_held(session, request.node_id, None, news)

    def _answered(
        self, session: ShareSession, one: Acknowledgement, code: int, message: str | None, now: float, news: ShareNews
    ) -> None:
        if not code:
            self._over(one, None, now, news)
            return
        error = error_for(code)
        if error.retriable and code not in _FINAL and session.is_open and now < one.deadline:
            one.failures += 1
            one.retry_at = now + self.settings.retry_backoff.seconds(one.failures)
            session.waiting.append(one)
            return
        error.message = f"{one.acquired.partition.tp}: {message or error.message}"
        self._over(one, error, now, news)

    def _over(self, one: Acknowledgement, error: KafkaError | None, now: float, news: ShareNews) -> None:
        """What became of an acknowledgement."""
        renewed = [offset for offset, kind in one.kinds.items() if kind == AcknowledgeType.RENEW]
        if renewed:
            expires = None if error is not None else now + (self.lock_timeout_ms or 0) / 1000
            one.acquired.renewal_over(renewed, expires)
        self._metrics.acknowledged.add(len(one.kinds))
        if error is not None:
            self._metrics.not_acknowledged.add(len(one.kinds))
            logger.debug("%s: acknowledging failed: %s", one.acquired.partition.tp, error)
        if one.commit is not None:
            one.commit.answered(one.acquired.partition.tp, error)
        news.outcomes.append((one, error))

    def _take_in(
        self,
        session: ShareSession,
        number: int,
        request: ShareRequest,
        place: tuple[bytes, int],
        answer: Any,
        now: float,
        news: ShareNews,
    ) -> None:
        """What a fetch brought of one partition."""
        if answer.error_code:
            self._partition_refused(request, place, answer, news)
            return
        if not answer.acquired_records:
            return
        partition = next((found for found in request.partitions if (found.topic_id, found.partition) == place), None)
        if partition is None:
            return  # its lock runs out
        ranges = [(found.first_offset, found.last_offset, found.delivery_count) for found in answer.acquired_records]
        expires = now + self.lock_timeout_ms / 1000 if self.lock_timeout_ms else inf
        self.buffer.append(Acquired(partition, session.node_id, number, answer.records, ranges, expires))
        self.wanted = False

    def _partition_refused(self, request: ShareRequest, place: tuple[bytes, int], answer: Any, news: ShareNews) -> None:
        code = answer.error_code
        error = error_for(code)
        if code in _FINAL:
            self._moved(request, place, answer, news)
        elif error.retriable or code in _PASSING:
            news.refresh_metadata = news.refresh_metadata or error.refresh_metadata
        else:
            tp = next((found.tp for found in request.partitions if (found.topic_id, found.partition) == place), None)
            news.error = fetch_refused(self.settings.group_id, code, answer.error_message, tp)

    def _moved(self, request: ShareRequest, place: tuple[bytes, int], answer: Any, news: ShareNews) -> None:
        """Another broker leads the partition, or there is none such any more: nothing is held here now."""
        news.refresh_metadata = True
        partition = next((found for found in request.partitions if (found.topic_id, found.partition) == place), None)
        if partition is None:
            return
        leader = answer.current_leader
        if leader.leader_id >= 0 and leader.leader_epoch >= 0:
            news.leaders[partition.tp] = leader.leader_id, leader.leader_epoch
        self._lose_held(self._session(request.node_id), request.node_id, partition, news)

    def _refused(
        self,
        session: ShareSession,
        request: ShareRequest,
        code: int,
        message: str | None,
        now: float,
        news: ShareNews,
    ) -> None:
        error = error_for(code)
        if message:
            error.message = message
        self._lost(session, request, error, now, news)
        if request.fetches and not error.retriable and code not in _PASSING:
            news.error = fetch_refused(self.settings.group_id, code, message, None)

    def failed(self, request: ShareRequest, error: KafkaError, now: float, news: ShareNews) -> None:
        """A request could not be sent, or was not answered: what the broker made of it is not known."""
        session = self._session(request.node_id)
        if session.request is not request:
            return
        self._lost(session, request, error, now, news)
        news.refresh_metadata = True
        if request.fetches and not error.retriable and not isinstance(error, KafkaTimeoutError):
            news.error = error

    def _lost(
        self, session: ShareSession, request: ShareRequest, error: KafkaError, now: float, news: ShareNews
    ) -> None:
        """A session is over; what it held is delivered to somebody again."""
        logger.debug("the share session with node %d begins anew: %s", session.node_id, error)
        session.lose(now + self.settings.retry_backoff.seconds(session.failures + 1))
        for one in request.told:
            self._over(one, error, now, news)
        lost = session_lost(session.node_id, error)
        waiting, session.waiting = session.waiting, []
        for one in waiting:
            self._over(one, lost, now, news)
        self._lose_held(session, request.node_id, None, news, lost)

    def _lose_held(
        self,
        session: ShareSession,
        node_id: int,
        partition: SharePartition | None,
        news: ShareNews,
        error: KafkaError | None = None,
    ) -> None:
        """A broker holds nothing any more, of one partition or at all: what is buffered of it others get."""
        self.buffer = deque(
            acquired
            for acquired in self.buffer
            if acquired.node_id != node_id or partition not in {None, acquired.partition}
        )
        news.lost.append((node_id, partition, error or session_lost(node_id, None)))


def _brought(response: Any) -> tuple[int, int]:
    """How many bytes and records an answer to a fetch brought."""
    size = records = 0
    for _, answer in _answers(response):
        size += len(answer.records or b"")
        records += sum(found.last_offset - found.first_offset + 1 for found in answer.acquired_records)
    return size, records


def _answers(response: Any) -> Iterator[tuple[bytes, Any]]:
    """The answers by partition, each with the topic's id."""
    for topic in response.responses:
        for answer in topic.partitions:
            yield bytes(topic.topic_id), answer
