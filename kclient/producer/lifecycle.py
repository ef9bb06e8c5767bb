"""The life of a producer: its parts are put together here, and started, failed and ended with their tasks."""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from math import nan
from typing import TYPE_CHECKING, NamedTuple

import anyio

from kclient.arguments import AS_LONG_AS_IT_TAKES, check_timeout, in_seconds
from kclient.cluster import ClientEvent, ClientState, Cluster, ClusterSnapshot, cluster_addresses
from kclient.cluster.reporting import MetricsReporting
from kclient.concurrency import Supervisor, Wakeup, to_the_end
from kclient.errors import ClosedError, IllegalStateError, KafkaError, KafkaTimeoutError
from kclient.metrics.registry import registry_for
from kclient.metrics.traffic import Traffic
from kclient.producer.accumulator import Accumulator
from kclient.producer.batch_buffer import BatchBuffer
from kclient.producer.delivery import wait_for_batches
from kclient.producer.delivery_reports import DeliveryReports
from kclient.producer.dispatcher import Dispatcher
from kclient.producer.drain import BatchDrain
from kclient.producer.interceptors import Interceptors
from kclient.producer.metrics import ProducerMetrics
from kclient.producer.producer_id import ProducerIdState
from kclient.producer.record_appender import RecordAppender
from kclient.producer.sender import Sender
from kclient.producer.sending import Sending
from kclient.producer.settings import ProducerSettings
from kclient.producer.states import TransactionState
from kclient.producer.status import ProducerStatus
from kclient.producer.topics import KnownTopics, TopicLoader
from kclient.producer.traced_sending import TracedSending
from kclient.producer.transaction_driver import TransactionDriver
from kclient.producer.transactions import TransactionManager
from kclient.unclosed import warn_unclosed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from uuid import UUID

    from kclient.concurrency import TaskHandle
    from kclient.config import ProducerConfig
    from kclient.metrics.metric import Metric
    from kclient.metrics.registry import MetricsRegistry

logger: logging.Logger = logging.getLogger("kclient.producer")


class _InLoop(NamedTuple):
    """The parts that live in the event loop, made when the producer starts."""

    cluster: Cluster
    reporting: MetricsReporting
    loader: TopicLoader
    sender: Sender
    dispatcher: Dispatcher
    task: TaskHandle
    transactions: TransactionDriver | None


class ProducerLifecycle:
    """One producer without a face. Only faces use it; the parts know each other where they need to, and not this.

    Args:
        config: The settings.
        clock: Monotonic time in seconds.
        lazy: Whether the first call starts the producer, so that calls are taken before.
        on_wake: Called, from any thread, when the sender has something to look at.
        check_alive: Raises if the thread that completes batches is gone; None where nobody blocks on deliveries.
    """

    def __init__(
        self,
        config: ProducerConfig,
        clock: Callable[[], float],
        *,
        lazy: bool = False,
        on_wake: Callable[[], object] | None = None,
        check_alive: Callable[[], object] | None = None,
    ) -> None:
        # what cannot be right is refused now, not by the first call
        cluster_addresses(config)
        settings = ProducerSettings.of(config)
        self.config = config
        self.unsent: int = 0
        """How many records were given up when the producer ended."""
        self.supervisor: Supervisor = Supervisor("producer", on_failure=self._on_failure)
        self.reports: DeliveryReports = DeliveryReports(self.supervisor.check_loop, check_alive)
        self._clock = clock
        self._settings = settings
        transactional_id = config.transactional_id
        self._ids = ProducerIdState(transactional=transactional_id is not None) if settings.idempotent else None
        self._transactions = (
            None if transactional_id is None or self._ids is None else TransactionManager(transactional_id, self._ids)
        )
        self.status: ProducerStatus = ProducerStatus(self._fatal, lazy=lazy)
        self.registry: MetricsRegistry = registry_for(config, clock)
        """What `metrics` tells."""
        self._traffic = Traffic(self.registry.windows)
        self._metrics = ProducerMetrics(self.registry.windows)
        self._sender_wakeup = Wakeup()
        """The sender has something to look at: set from any thread."""
        self._on_wake = on_wake
        self.buffer: BatchBuffer = BatchBuffer(settings.accumulator, self._wake_sender)
        self._topics = KnownTopics()
        sending = Sending if settings.tracing is None else partial(TracedSending, settings.tracing)
        self.sending: Sending = sending(
            RecordAppender(
                self.buffer.appender,
                Accumulator(self.buffer, settings.accumulator, self.reports),
                self._topics,
                self._check_sending,
                self._snapshot,
                key_serializer=settings.key_serializer,
                value_serializer=settings.value_serializer,
                partitioner=settings.partitioner,
                clock=clock,
                wall_clock=time.time,
            ),
            Interceptors(settings.interceptors),
            self.reports,
            self._check_sending,
            clock=clock,
            max_block_ms=config.max_block_ms,
            buffer_memory=config.buffer_memory,
            metrics=self._metrics,
            transaction=self._transaction_number if self._transactions is not None else None,
        )
        if self._transactions is not None:
            self._transactions.listeners.append(self._transaction_changed)
            self._transaction_changed()
        self._forgotten = False
        self._plugins_closed = False
        self._pid = os.getpid()
        self._in_loop: _InLoop | None = None
        self._define_metrics()

    def __repr__(self) -> str:
        return f"{','.join(self.config.bootstrap_servers)} {self.status.state.value}"

    def _fatal(self) -> KafkaError | None:
        if self._transactions is not None and self._transactions.state is TransactionState.FATAL_ERROR:
            return self._transactions.error
        return None if self._ids is None else self._ids.error

    def _check_sending(self) -> None:
        """Raise where the producer takes no records."""
        self.status.check()
        if self._transactions is not None and (refused := self._transactions.refusal()) is not None:
            raise refused

    def _transaction_number(self) -> int:
        return 0 if self._transactions is None else self._transactions.number

    def _transaction_changed(self) -> None:
        """Records are taken amid a transaction only."""
        assert self._transactions is not None
        if self._transactions.state is TransactionState.IN_TRANSACTION:
            self.buffer.reopen()
        else:
            self.buffer.shut(self._transactions.refusal)

    def _snapshot(self) -> ClusterSnapshot:
        return self.cluster.snapshot

    def _wake_sender(self) -> None:
        if self._on_wake is not None:
            self._on_wake()
        self._sender_wakeup.set()

    @property
    def plain(self) -> bool:
        """Whether a record goes to the buffer as it is: then `send` tries the compiled append first."""
        used = self._settings
        plugins = (used.partitioner, used.key_serializer, used.value_serializer)
        return used.tracing is None and not used.interceptors and all(plugin is None for plugin in plugins)

    # ------------------------------------------------------------------ what lives in the loop

    def _started(self) -> _InLoop:
        if self._in_loop is None:
            raise IllegalStateError("The producer was not started: use `async with` or call `start`")
        return self._in_loop

    @property
    def cluster(self) -> Cluster:
        """Metadata and connections.

        Raises:
            IllegalStateError: The producer was not started.
        """
        return self._started().cluster

    @property
    def loader(self) -> TopicLoader:
        """Waits for topics.

        Raises:
            IllegalStateError: The producer was not started.
        """
        return self._started().loader

    @property
    def has_open_transaction(self) -> bool:
        """Whether there is a transaction that may be aborted."""
        found = None if self._transactions is None else self._transactions.state
        return found in {TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR}

    def transactions(self) -> TransactionDriver:
        """The transactions.

        Raises:
            IllegalStateError: There is no `transactional.id`, or the producer was not started.
            KafkaError: The producer has failed, or was closed.
        """
        self.status.check()
        self.supervisor.check_loop()
        driver = self._started().transactions
        if driver is None:
            raise IllegalStateError("Transactions need the setting transactional.id (transactional_id='...')")
        return driver

    async def start(self) -> None:
        """Start the background tasks; connects when there is something to send."""
        self.status.check_new()
        await self.supervisor.start()
        try:
            if self.status.state is not ClientState.NEW:
                raise ClosedError("The producer was closed while it was started; make a new one")
            self._in_loop = self._make_parts_in_loop()
            await self._in_loop.cluster.start()
            self._in_loop.reporting.start()
            self.status.go(ClientEvent.STARTED)
        except BaseException:  # whatever it is, no task may stay behind a producer that was not made
            try:
                if self._in_loop is not None:
                    await self._in_loop.cluster.aclose()
            finally:
                await self.supervisor.aclose()
            raise

    def _make_parts_in_loop(self) -> _InLoop:
        config, settings = self.config, self._settings
        cluster = Cluster(
            config,
            self.supervisor,
            metadata_max_idle=config.metadata_max_idle_ms / 1000,
            in_use=self._topics_in_use,
            clock=self._clock,
            traffic=self._traffic,
        )
        loader = TopicLoader(
            cluster, self._topics, self.status.check, max_block=config.max_block_ms / 1000, clock=self._clock
        )
        # without sequence numbers only one batch at a time keeps a partition's order
        mute = not settings.idempotent and settings.sender.max_in_flight == 1
        sender = Sender(
            self.buffer,
            BatchDrain(self.buffer, settings.accumulator, self._ids, self._transactions, mute=mute),
            self._ids,
            cluster.metadata,
            settings.sender,
            cluster.retry_backoff,
            self._metrics,
            transactions=self._transactions,
        )
        cluster.listeners.append(self._on_metadata)
        transactions = None
        if self._transactions is not None:
            transactions = TransactionDriver(
                self._transactions,
                cluster,
                self.supervisor,
                buffer=self.buffer,
                reports=self.reports,
                metrics=self._metrics,
                wake_sender=self._sender_wakeup.set,
                timeout_ms=config.transaction_timeout_ms,
                max_block=config.max_block_ms / 1000,
            )
        dispatcher = Dispatcher(
            sender,
            cluster,
            self.supervisor,
            acks=settings.sender.acks,
            timeout_ms=config.request_timeout_ms,
            wakeup=self._sender_wakeup,
            transactions=self._transactions,
            add_partitions=None if transactions is None else transactions.add_partitions,
        )
        task = self.supervisor.spawn(dispatcher.run, name="sender")
        reporting = MetricsReporting(
            self.registry,
            self.supervisor,
            cluster,
            push=config.enable_metrics_push,
            resource=lambda: {} if config.transactional_id is None else {"transactional_id": config.transactional_id},
        )
        return _InLoop(cluster, reporting, loader, sender, dispatcher, task, transactions)

    def _on_metadata(self) -> None:
        """New metadata: append may go by them from now on."""
        snapshot = self.cluster.snapshot
        self._topics.update(snapshot)
        self.buffer.update(snapshot)

    def _topics_in_use(self) -> set[str]:
        """The topics that records wait to be sent to, or that calls wait for."""
        return self.buffer.topics.union(self.loader.awaited)

    # ------------------------------------------------------------------ what goes wrong

    def _on_failure(self, error: BaseException) -> None:
        """A background task died: everything that waits fails, and the next call raises it."""
        cause = self.status.fail(error)
        self.buffer.close(cause)
        ended = isinstance(error, ClosedError)  # a loop that ends takes the tasks with it
        lost = sum(batch.count for batch in self.buffer.abort(cause))
        self._gave_up(lost, _LOOP_ENDED if ended else "the producer failed")
        if not ended:
            logger.error("the producer failed: %r", error)

    def _gave_up(self, count: int, why: str) -> None:
        self.unsent += count
        if count:
            logger.warning("%d records were not sent: %s (%r)", count, why, self)

    def forgotten(self, face: object, remedy: str) -> None:
        """The face was dropped: warn if it was not closed, and let the tasks send what is there and end.

        It runs in the garbage collector, so in any thread, whatever lock that holds.
        """
        if self._forgotten or self.status.state is not ClientState.RUNNING or self._pid != os.getpid():
            return
        self._forgotten = True
        pending = self.buffer.open_records
        if self.unsent:
            lost = f"{self.unsent} records were not sent"
        elif pending:
            lost = f"{pending} records are not acknowledged yet, and lost if the program ends before they are"
        else:
            lost = ""
        self.supervisor.retire(partial(self.finish, None))
        warn_unclosed(face, remedy, lost)

    def disable(self, error: KafkaError) -> None:
        """Make every call raise from now on, without touching a lock that a lost thread may hold (after a fork)."""
        self.status.fail(error)
        self._topics.forget()
        self.reports.forget()
        self.buffer.appender.topics.clear()

    # ------------------------------------------------------------------ flush and end

    async def wait_flushed(self, timeout: float | None) -> None:
        """Wait until the fate of everything appended so far is known.

        Raises:
            KafkaTimeoutError: It is not known within `timeout` seconds.
            TypeError, ValueError: The timeout is not a number of seconds.
        """
        self.status.check()
        check_timeout(timeout, AS_LONG_AS_IT_TAKES)
        began = self._clock()
        batches = self.buffer.begin_flush()
        try:
            with anyio.move_on_after(timeout):
                await wait_for_batches(batches)
        finally:
            self.buffer.end_flush()
            self._metrics.flush_time.add(self._clock() - began)
        waiting = sum(1 for batch in batches if not batch.done)
        if waiting and timeout is not None:
            raise KafkaTimeoutError(f"{waiting} batches were not acknowledged within {in_seconds(timeout)}")

    def close_unstarted(self) -> None:
        """The producer was never started, and is not any more. May be called again."""
        if self.status.state is ClientState.NEW:
            self.status.go(ClientEvent.CLOSED)

    async def finish(self, timeout: float | None) -> None:
        """Take no more records, send what is there, disconnect. The supervisor is left for its owner to close.

        Cancelling it, like a timeout, gives up what has not been acknowledged.

        Args:
            timeout: Seconds to wait for what is on its way; None waits until its fate is known. What is given up is
                counted in `unsent`.
        """
        self.close_unstarted()
        if self.status.state is ClientState.CLOSED:
            return
        if self.status.state is ClientState.RUNNING:
            self.status.go(ClientEvent.CLOSE)
        self.buffer.close()
        deadline = None if timeout is None else self._clock() + timeout
        try:
            if timeout is None or timeout > 0:
                with anyio.move_on_after(timeout):
                    driver = self._started().transactions
                    if driver is not None:
                        await driver.finish()
                    await wait_for_batches(self.buffer.incomplete)
        finally:
            await to_the_end(partial(self._end, None if deadline is None else max(deadline - self._clock(), 0.0)))

    async def _end(self, left: float | None) -> None:
        parts = self._started()
        error = ClosedError("The producer was closed before the record was acknowledged")
        self._gave_up(parts.sender.abort(error), "the producer was closed before they were acknowledged")
        if self._transactions is not None:
            self.reports.take_failures()  # the end of the transaction that they were part of told of them
        parts.dispatcher.stop()
        parts.task.cancel()
        try:
            await parts.reporting.finish(left)
        finally:
            await parts.cluster.aclose()
        if self.status.state is ClientState.CLOSING:
            self.status.go(ClientEvent.CLOSED)

    def close_plugins(self) -> None:
        """Tell interceptors, partitioner and serializers, once, that it is over; in the caller's thread."""
        if self._plugins_closed:
            return
        self._plugins_closed = True
        used = self._settings
        for plugin in (*used.interceptors, used.partitioner, used.key_serializer, used.value_serializer):
            close = getattr(plugin, "close", None)
            if close is not None:
                try:
                    close()
                except Exception:  # the user's code: the others are closed all the same
                    logger.exception("%s.close raised", type(plugin).__name__)

    # ------------------------------------------------------------------ looking

    async def client_instance_id(self, timeout: float | None) -> UUID:
        """See `Producer.client_instance_id`."""
        self.status.check()
        self.supervisor.check_loop()
        return await self._started().reporting.client_instance_id(timeout)

    def _define_metrics(self) -> None:
        self._metrics.define(self.registry)
        self._traffic.define(self.registry, "producer", self._addresses, latency=True)
        self.registry.define(self._gauges)

    def _addresses(self) -> Mapping[int, object]:
        return {} if self._in_loop is None else self._in_loop.cluster.addresses()

    def _gauges(self) -> Iterator[Metric]:
        group = self.registry.group("producer-metrics")
        total, pool = self._settings.accumulator.buffer_memory, self.buffer.pool
        yield group.gauge("buffer-total-bytes", "The bytes of buffer.memory", lambda: float(total))
        yield group.gauge("buffer-available-bytes", "The bytes of it that are free", lambda: float(pool.free))
        yield group.gauge("waiting-threads", "How many calls wait for room", lambda: float(self.buffer.waiting))
        yield group.gauge("requests-in-flight", "How many Produce requests are unanswered", self._requests_in_flight)
        yield group.gauge("metadata-age", "The age in seconds of what is known of the cluster", self._metadata_age)

    def _requests_in_flight(self) -> float:
        return 0.0 if self._in_loop is None else float(self._in_loop.sender.in_flight)

    def _metadata_age(self) -> float:
        updated = None if self._in_loop is None else self._in_loop.cluster.metadata.updated_at
        return nan if updated is None else max(self._clock() - updated, 0.0)


_LOOP_ENDED = "its event loop ended before the producer was closed; use `async with`, `with`, or `close`"
