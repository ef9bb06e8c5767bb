"""What to send next, and what an answer means: the producer's decisions, without I/O or clock.

`Sender.poll` looks at what has gathered and answers with `Actions`; whoever owns the connections carries them out and
reports back with `on_response`, `on_failure`, `on_connect_failed` and the like. `dispatcher.py` does that for real,
tests do it in simulated time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from kclient.errors import (
    ErrorCode,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    RequestTimedOutError,
    TopicAuthorizationError,
    error_for,
)
from kclient.producer.states import ProducerIdPhase, TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kclient.cluster import Backoff, ClusterSnapshot, MetadataCache
    from kclient.producer.batch import ProducerBatch
    from kclient.producer.batch_buffer import BatchBuffer
    from kclient.producer.drain import BatchDrain
    from kclient.producer.metrics import ProducerMetrics
    from kclient.producer.producer_id import ProducerIdState
    from kclient.producer.settings import SenderSettings
    from kclient.producer.transactions import TransactionManager
    from kclient.types import TopicPartition

logger: logging.Logger = logging.getLogger("kclient.producer")


class PartitionOutcome(NamedTuple):
    """What a broker answered for one partition."""

    code: int = 0
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: tuple[tuple[int, str | None], ...] = ()


@dataclass(slots=True, eq=False)
class InFlight:
    """A Produce request on its way."""

    node_id: int
    batches: dict[TopicPartition, ProducerBatch]
    sent: float
    names: dict[bytes, str] = field(default_factory=dict)
    """Topic names by id, as they were when it was sent."""


@dataclass(slots=True)
class Actions:
    """What has to be done now."""

    requests: list[InFlight] = field(default_factory=list)
    """Send these, in this order."""
    connect: set[int] = field(default_factory=set)
    """There is something for these brokers: connect to them."""
    init_producer_id: bool = False
    """Ask any broker for a producer id."""
    add_partitions: bool = False
    """Ask the transaction's coordinator to add partitions."""
    refresh: bool = False
    """Fetch metadata: a leader is not known, a broker said that it is not the one, or did not answer."""
    leaderless: set[str] = field(default_factory=set)
    """Topics with records for a partition whose leader is not known; these must be among what is fetched."""
    wake_at: float = inf
    """Call `poll` again at this time at the latest."""


class Sender:
    """Decides for one producer.

    Args:
        buffer: Where batches are.
        drain: Takes them out, and puts them back.
        producer_id_state: Sequence numbers; None if the producer is not idempotent.
        transactions: What may leave in which transaction; None without a transactional id.
        metadata: Leaders.
        settings: Limits and times.
        backoff: Delay before a batch is sent again (`retry.backoff.ms`).
        metrics: Is kept up to date.
    """

    def __init__(
        self,
        buffer: BatchBuffer,
        drain: BatchDrain,
        producer_id_state: ProducerIdState | None,
        metadata: MetadataCache,
        settings: SenderSettings,
        backoff: Backoff,
        metrics: ProducerMetrics,
        transactions: TransactionManager | None = None,
    ) -> None:
        self._buffer = buffer
        self._drain = drain
        self._producer_id_state = producer_id_state
        self._transactions = transactions
        self.metrics: ProducerMetrics = metrics
        self._metadata = metadata
        self._settings = settings
        self._backoff = backoff
        self._in_flight: dict[int, list[InFlight]] = {}
        self._throttled: dict[int, float] = {}
        self._unreachable: dict[int, KafkaError] = {}
        self._refresh = False
        self._seen: ClusterSnapshot | None = None
        self._next_expiry = 0.0
        self._init_failures = 0
        self._init_at = 0.0
        self._init_error: KafkaError | None = None

    # ------------------------------------------------------------------ what to do

    def poll(self, now: float, connected: Callable[[int], bool]) -> Actions:
        """What has to be done now.

        Args:
            now: Monotonic time in seconds.
            connected: Whether there is an open connection to a broker.
        """
        actions = Actions()
        if not self._producer_id_ready(now, actions) or not self._transaction_ready():
            return actions
        if now >= self._next_expiry:
            self._expire(now)
        actions.wake_at = min(actions.wake_at, self._next_expiry)
        snapshot = self._metadata.snapshot
        busy = {node for node, requests in self._in_flight.items() if requests}
        ready = self._drain.ready(snapshot, now, busy)
        actions.wake_at = min(actions.wake_at, ready.next_at)
        actions.leaderless = ready.unknown_leaders
        actions.refresh = self._refresh or bool(ready.unknown_leaders)
        self._refresh = False
        more = bool(ready.nodes)
        while more:
            nodes = self._sendable(ready.nodes, now, connected, actions)
            drained = self._drain.drain(snapshot, nodes, now)
            for node, batches in drained.batches.items():
                actions.requests.append(self._begin(node, batches, now))
            more = drained.more and bool(nodes)
        actions.add_partitions = self._transactions is not None and self._transactions.wants_to_add
        return actions

    def _begin(self, node: int, batches: list[ProducerBatch], now: float) -> InFlight:
        request = InFlight(node, {batch.tp: batch for batch in batches}, now)
        self._in_flight.setdefault(node, []).append(request)
        self.metrics.request(batches, now)
        return request

    def _producer_id_ready(self, now: float, actions: Actions) -> bool:
        """Keep the producer id in order; False if it is lost for good and everything with it."""
        producer_id_state = self._producer_id_state
        if producer_id_state is None:
            return True
        if producer_id_state.phase is ProducerIdPhase.FATAL_ERROR:
            assert producer_id_state.error is not None
            self._buffer.close(producer_id_state.error)
            self.abort(producer_id_state.error)
            return False
        if self._metadata.snapshot is not self._seen:
            self._seen = self._metadata.snapshot
            producer_id_state.go_by(self._seen)
        producer_id_state.resolve()
        producer_id_state.bump_if_required()
        if producer_id_state.needs_producer_id and self._buffer.queued:
            if now >= self._init_at:
                producer_id_state.initializing()
                actions.init_producer_id = True
            else:
                actions.wake_at = min(actions.wake_at, self._init_at)
        return True

    def _transaction_ready(self) -> bool:
        """Go by the transaction; False if the producer cannot go on, and everything is given up."""
        transactions = self._transactions
        if transactions is None:
            return True
        assert self._producer_id_state is not None
        if self._producer_id_state.has_gaps:
            transactions.sequence_lost()
        if transactions.state is TransactionState.FATAL_ERROR:
            assert transactions.error is not None
            self._buffer.close(transactions.error)
            self.abort(transactions.error)
            return False
        if (error := transactions.giving_up) is not None:
            for batch in self._buffer.take_queued():
                self._fail(batch, error, refused=False)
        return True

    def _sendable(
        self, nodes: Iterable[int], now: float, connected: Callable[[int], bool], actions: Actions
    ) -> list[int]:
        """Those brokers that can take a request now."""
        result = []
        for node in nodes:
            throttled = self._throttled.get(node, 0.0)
            if throttled > now:
                actions.wake_at = min(actions.wake_at, throttled)
            elif not connected(node):
                actions.connect.add(node)
            elif len(self._in_flight.get(node, ())) < self._settings.max_in_flight:
                result.append(node)
        return result

    def _expire(self, now: float) -> None:
        """Give up what is too old, queued or in flight. (Requests time out in the connection.)"""
        timeout = self._settings.delivery_timeout
        for batch in self._drain.take_expired(now):
            self._fail(batch, self._expired(batch), refused=False)
        # what comes later cannot expire before this
        self._next_expiry = min(now + timeout, self._drain.oldest + timeout)
        for requests in self._in_flight.values():
            for request in requests:
                for batch in request.batches.values():
                    if batch.created + timeout > now:
                        self._next_expiry = min(self._next_expiry, batch.created + timeout)
                    elif not batch.done:
                        self._fail(batch, self._expired(batch), refused=False)

    def _expired(self, batch: ProducerBatch) -> KafkaError:
        """Why a batch could not be delivered in time, as exactly as is known."""
        leader = self._metadata.snapshot.leader_id(batch.tp)
        seconds = self._settings.delivery_timeout
        text = f"{batch.count} records for {batch.tp} were not delivered within delivery.timeout.ms ({seconds:g} s)"
        cause: KafkaError | None = batch.error
        topic = self._metadata.snapshot.topics.get(batch.tp.topic)
        if leader is None and topic is not None and topic.partitions and batch.tp.partition not in topic.partitions:
            return KafkaTimeoutError(f"{text}: the topic has no such partition any more, it was created again")
        if cause is None and leader is None:
            return KafkaTimeoutError(f"{text}: the partition has no leader that is known")
        if cause is None and self._producer_id_state is not None and not self._producer_id_state.identity.valid:
            cause = self._init_error
        if cause is None and leader is not None:
            cause = self._unreachable.get(leader)
        error = KafkaTimeoutError(f"{text}: {cause}" if cause is not None else text)
        error.__cause__ = cause
        return error

    # ------------------------------------------------------------------ the producer id

    def on_producer_id(self, producer_id: int, epoch: int) -> None:
        """InitProducerId succeeded."""
        assert self._producer_id_state is not None
        self._init_failures = 0
        self._init_error = None
        self._producer_id_state.initialized(producer_id, epoch)

    def on_producer_id_failed(self, error: KafkaError, now: float) -> None:
        """InitProducerId failed; asked for again unless the error is final."""
        assert self._producer_id_state is not None
        self._init_failures += 1
        self._init_error = error
        self._init_at = now + self._backoff.seconds(self._init_failures)
        self._producer_id_state.initialization_failed(error)

    # ------------------------------------------------------------------ answers

    @property
    def in_flight(self) -> int:
        """Requests on their way."""
        return sum(len(requests) for requests in self._in_flight.values())

    def on_connected(self, node_id: int) -> None:
        """There is a connection to a broker."""
        self._unreachable.pop(node_id, None)

    def on_connect_failed(self, node_id: int, error: KafkaError) -> None:
        """A broker could not be reached; another attempt follows."""
        self._unreachable[node_id] = error

    def throttle(self, node_id: int, until: float) -> None:
        """The broker asks for a pause (quota, KIP-219)."""
        self._throttled[node_id] = max(until, self._throttled.get(node_id, 0.0))

    def on_sent(self, request: InFlight) -> None:
        """With `acks=0` there is no answer: sent means done."""
        self._remove(request)
        for batch in request.batches.values():
            self._succeed(batch, PartitionOutcome())
            self._drain.landed(batch.tp)

    def on_response(self, request: InFlight, outcomes: dict[TopicPartition, PartitionOutcome], now: float) -> None:
        """The broker answered."""
        self._remove(request)
        missing = PartitionOutcome(ErrorCode.UNKNOWN_SERVER_ERROR, message="The broker's answer left it out")
        for tp, batch in request.batches.items():
            self._complete(batch, outcomes.get(tp, missing), now)
            self._drain.landed(batch.tp)

    def on_failure(self, request: InFlight, error: KafkaError, now: float) -> None:
        """The connection broke, or the answer makes no sense: nobody knows whether the batches were stored."""
        self._remove(request)
        self._refresh = True  # others may lead by now
        for batch in request.batches.values():
            self._handle_error(batch, error, PartitionOutcome(error.code or 0), now, answered=False)
            self._drain.landed(batch.tp)

    def _remove(self, request: InFlight) -> None:
        requests = self._in_flight.get(request.node_id, [])
        if request in requests:
            requests.remove(request)
        if self._producer_id_state is not None:
            for tp in request.batches:
                self._producer_id_state.landed(tp)

    def _complete(self, batch: ProducerBatch, outcome: PartitionOutcome, now: float) -> None:
        if outcome.code == ErrorCode.NONE or self._is_duplicate(batch, outcome.code):
            self._succeed(batch, outcome)
        elif outcome.code == ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1 and not batch.done:
            self._split(batch)
        else:
            self._handle_error(batch, _error(batch, outcome), outcome, now, answered=True)

    def _is_duplicate(self, batch: ProducerBatch, code: int) -> bool:
        """Whether the broker has the batch, but has forgotten at which offset."""
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return True
        # it knows the last five batches only, and after a restart sometimes only the last one
        out_of_order = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return out_of_order and batch.must_be_stored and self._overtaken(batch)

    def _overtaken(self, batch: ProducerBatch) -> bool:
        return self._producer_id_state is not None and self._producer_id_state.overtaken(batch)

    def _succeed(self, batch: ProducerBatch, outcome: PartitionOutcome) -> None:
        base_offset = -1 if outcome.code else outcome.base_offset
        if self._producer_id_state is not None:
            self._producer_id_state.completed(batch, base_offset)
        if not batch.done:
            self.metrics.sent(batch)
            batch.succeed(base_offset, outcome.log_append_time, outcome.log_start_offset)
        self._buffer.finished(batch)

    def _split(self, batch: ProducerBatch) -> None:
        if self._producer_id_state is not None:
            self._producer_id_state.split(batch)
        children = self._drain.split(batch)
        logger.info(
            "The broker refused a batch of %d bytes for %s as too large (max.message.bytes): split into %d",
            batch.size, batch.tp, len(children),
        )  # fmt: skip
        self.metrics.split()
        if self._producer_id_state is not None:
            for child in children:
                if child.has_sequence:
                    self._producer_id_state.adopt(child)

    def _handle_error(
        self, batch: ProducerBatch, error: KafkaError, outcome: PartitionOutcome, now: float, *, answered: bool
    ) -> None:
        if error.refresh_metadata:
            self._refresh = True
        if batch.done:
            return  # given up meanwhile
        if self._producer_id_state is not None:
            self._producer_id_state.attempt_failed(batch, error.code, answered=answered)
        in_time = now < batch.created + self._settings.delivery_timeout
        retries_left = batch.attempts < self._settings.retries
        if in_time and retries_left and self._may_retry(batch, error, outcome):
            logger.debug("%s: attempt %d failed, again: %s", batch.tp, batch.attempts + 1, error)
            self.metrics.retried(batch)
            batch.error = error
            self._drain.reenqueue(batch, now + self._backoff.seconds(batch.attempts + 1))
            return
        # a batch that was sent before may have been stored then, and only the answer went astray
        refused = answered and not error.retriable and not batch.attempts
        out_of_order = error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        overtaken = out_of_order and self._overtaken(batch)
        # in time it would have been tried again, because the one before it is
        if (error.retriable or out_of_order) and not overtaken and not in_time:
            batch.error = error
            error = self._expired(batch)
        if overtaken:
            text = (
                "a later batch was stored without this one; the topic was probably deleted and created again meanwhile"
            )
            error = error_for(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{batch.tp}: {text}")
        records: dict[int, KafkaError] = {index: InvalidRecordError(text) for index, text in outcome.record_errors}
        self._fail(batch, error, refused=refused, records=records)

    def _may_retry(self, batch: ProducerBatch, error: KafkaError, outcome: PartitionOutcome) -> bool:
        if self._producer_id_state is None or error.code is None:
            return error.retriable
        return self._producer_id_state.may_retry(batch, error, outcome.log_start_offset)

    def _fail(
        self,
        batch: ProducerBatch,
        error: KafkaError,
        *,
        refused: bool,
        records: dict[int, KafkaError] | None = None,
    ) -> None:
        """Give a batch up; `refused`: the broker surely did not store it, else nobody knows."""
        if self._producer_id_state is not None:
            if not refused:
                self._producer_id_state.lost(batch)
            self._producer_id_state.failed(batch, error, refused=refused)
        self.metrics.failed(batch)
        if self._transactions is not None:
            self._transactions.delivery_failed(batch, error)
        logger.debug("%s: %d records failed: %s", batch.tp, batch.count, error)
        batch.fail(error, records)
        self._buffer.finished(batch)

    def give_up(self, error: KafkaError) -> None:
        """Fail what is there, because a broker refuses us for good; the producer takes more records."""
        for batch in self._buffer.take_queued():
            self._fail(batch, error, refused=False)
        for requests in self._in_flight.values():
            for request in requests:
                for batch in request.batches.values():
                    if not batch.done:
                        self._fail(batch, error, refused=False)

    def abort(self, error: KafkaError) -> int:
        """Give everything up at the producer's end; returns how many records were not sent or not acknowledged."""
        self._in_flight.clear()
        batches = self._buffer.abort(error)
        for batch in batches:
            self.metrics.failed(batch)
        return sum(batch.count for batch in batches)


def _error(batch: ProducerBatch, outcome: PartitionOutcome) -> KafkaError:
    """The exception for a broker's answer, with the partition in its text."""
    error = error_for(outcome.code, outcome.message)
    if isinstance(error, (RequestTimedOutError, TopicAuthorizationError)) or outcome.message is None:
        error = error_for(outcome.code, f"{batch.tp}: {outcome.message or error.message}")
    return error
