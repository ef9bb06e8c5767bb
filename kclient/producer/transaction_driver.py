"""Carries out what transactions ask for: the calls, each a task of the producer, and the requests to coordinators."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from kclient.arguments import in_seconds
from kclient.cluster.coordinators import GROUP, TRANSACTION
from kclient.concurrency import Completion
from kclient.errors import (
    ClosedError,
    CommitFailedError,
    ErrorCode,
    IllegalStateError,
    InvalidTxnStateError,
    KafkaError,
    KafkaTimeoutError,
)
from kclient.producer.delivery import wait_for_batches
from kclient.producer.open_transactions import OpenTransaction
from kclient.producer.producer_id import NO_PRODUCER_ID, ProducerIdAndEpoch
from kclient.producer.states import TransactionState
from kclient.producer.transaction_coordinator import FIRST_PAUSE, CoordinatorRequests, GivenUpError, RefusedError
from kclient.producer.transaction_errors import GONE_FROM_GROUP, ErrorKind, TransactionRequest
from kclient.producer.transaction_requests import (
    ADD_PARTITIONS_VERSIONS,
    END_VERSIONS,
    INIT_BUMP_VERSIONS,
    INIT_VERSIONS,
    OFFSET_COMMIT_VERSIONS,
    add_partitions_codes,
    add_partitions_request,
    can_fence,
    offset_commit_codes,
    offset_commit_request,
    single_code,
)
from kclient.producer.transactions import V1
from kclient.protocol.messages import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from kclient.cluster import Cluster
    from kclient.concurrency import Supervisor, TaskHandle
    from kclient.producer.batch_buffer import BatchBuffer
    from kclient.producer.delivery_reports import DeliveryReports
    from kclient.producer.metrics import ProducerMetrics
    from kclient.producer.transactions import TransactionManager
    from kclient.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

logger: logging.Logger = logging.getLogger("kclient.producer")

BEGIN: Final = "begin_transaction"
INIT: Final = "init_transactions"
COMMIT: Final = "commit_transaction"
ABORT: Final = "abort_transaction"
HAND_OVER: Final = "hand_over"
_SEND_OFFSETS: Final = "send_offsets_to_transaction"


_WAITING: Final = frozenset({TransactionState.COMMITTING, TransactionState.ABORTING, TransactionState.HANDING_OVER})
"""What was sent is waited for."""
_LEFT_OPEN: Final = frozenset({TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR})


def _timed_out(error: KafkaError) -> KafkaError:
    return InvalidTxnStateError(f"{error.message} It probably took longer than transaction.timeout.ms")


class _Call:
    """A call that is carried out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.task: TaskHandle | None = None
        self.done: Completion[None] = Completion()

    async def ended(self) -> None:
        """Wait until it has ended, however."""
        assert self.task is not None
        await self.task.wait()


class TransactionDriver:
    """The transactions of one producer, as calls that wait.

    Args:
        manager: Decides.
        cluster: Connections to coordinators.
        supervisor: Owns the tasks.
        buffer: Holds the records of the transaction.
        reports: Forget failed deliveries of a transaction that is aborted.
        metrics: Is told how long calls took.
        wake_sender: Has the sender look.
        timeout_ms: `transaction.timeout.ms`.
        max_block: Seconds for which a call waits (`max.block.ms`).
    """

    def __init__(
        self,
        manager: TransactionManager,
        cluster: Cluster,
        supervisor: Supervisor,
        *,
        buffer: BatchBuffer,
        reports: DeliveryReports,
        metrics: ProducerMetrics,
        wake_sender: Callable[[], object],
        timeout_ms: int,
        max_block: float,
    ) -> None:
        self._manager = manager
        self._cluster = cluster
        self._supervisor = supervisor
        self._buffer = buffer
        self._reports = reports
        self._metrics = metrics
        self._wake_sender = wake_sender
        self._timeout_ms = timeout_ms
        self._max_block = max_block
        self._coordinator = CoordinatorRequests(
            cluster, manager.transactional_id, TRANSACTION, manager.transactional_id
        )
        self._groups: dict[str, CoordinatorRequests] = {}
        self._pending: _Call | None = None
        """The call that is under way, or whose outcome nobody has been told of."""
        self._adding: TaskHandle | None = None
        self._offsets: list[TaskHandle] = []
        self._delivering: anyio.CancelScope | None = None
        manager.listeners.append(self._changed)

    def _changed(self) -> None:
        """The state is another one."""
        failed = self._manager.state in {TransactionState.ABORTABLE_ERROR, TransactionState.FATAL_ERROR}
        if self._delivering is not None and failed:
            self._delivering.cancel()  # the outcome of the other deliveries changes nothing
        self._wake_sender()

    # ------------------------------------------------------------------ calls

    # What some return is to be called once the caller knows that they were successful. Until then the same call gives
    # the outcome again: a thread that waits for the loop may be interrupted on the way.

    async def init_transactions(self) -> Callable[[], None]:
        """Get a producer id for the transactional id; fences who had it before, and ends what that left open."""
        return await self._call(INIT, self._manager.init, self._initialize)

    async def begin_transaction(self) -> None:
        """Begin a transaction."""
        self._supervisor.check()
        self._check_pending(BEGIN)
        began = self._cluster.clock()
        self._manager.begin()
        self._metrics.transaction_call(BEGIN, self._cluster.clock() - began)

    async def commit_transaction(self) -> Callable[[], None]:
        """Commit what was sent."""
        return await self._call(COMMIT, self._manager.commit, self._commit)

    async def abort_transaction(self) -> Callable[[], None]:
        """Abort what was sent."""
        return await self._call(ABORT, self._manager.abort, self._abort)

    async def hand_over(self) -> Callable[[], None]:
        """Have everything delivered, and leave the transaction open; `handed_over` then says which it is.

        `open_transactions` ends it. Nothing but that, or its time-out, does: closing leaves it open.
        """
        return await self._call(HAND_OVER, self._manager.hand_over, self._hand_over)

    @property
    def handed_over(self) -> OpenTransaction | None:
        """The transaction that `hand_over` has left open; None where no coordinator knows of one."""
        manager = self._manager
        if manager.state is not TransactionState.HANDED_OVER or not manager.started:
            return None
        return OpenTransaction(manager.transactional_id, *manager.identity, manager.version)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> None:
        """Add offsets of a group to the transaction."""
        self._supervisor.check()
        self._check_pending(_SEND_OFFSETS)
        refusal = self._manager.refusal()
        if refusal is not None:
            raise refusal
        if not offsets:
            return
        call = _Call(_SEND_OFFSETS)
        before = self._offsets[-1] if self._offsets else None
        work = partial(self._send_offsets, dict(offsets), group, before)
        call.task = task = self._supervisor.spawn(self._run, call, work, name=_SEND_OFFSETS)
        self._offsets.append(task)
        task.on_done(self._offsets.remove)
        await self._wait(call, "; it goes on, and commit_transaction waits for it; abort_transaction gives it up")

    def _check_pending(self, name: str) -> None:
        pending = self._pending
        if pending is None:
            return
        if pending.done.done and pending.done.error is not None:
            self._pending = None  # the state says what failed
            return
        way = "has ended, but nobody was told so" if pending.done.done else "is under way"
        raise IllegalStateError(f"{name} is not possible: {pending.name} {way}; call it again for its outcome")

    async def _call(
        self, name: str, begin: Callable[[], None], work: Callable[[], Awaitable[None]]
    ) -> Callable[[], None]:
        """Have something done by a task, or wait for the task that does it already."""
        self._supervisor.check()
        if self._pending is None or self._pending.name != name:
            self._check_pending(name)
            begin()
            self._begin(name, work)
        call = self._pending
        assert call is not None
        await self._wait(call, f"; it goes on: call {name} again to wait for it")
        return partial(self._told, call)

    def _told(self, call: _Call) -> None:
        """Somebody knows the outcome of a call. Any thread may say so."""
        if self._pending is call:
            self._pending = None

    def _begin(self, name: str, work: Callable[[], Awaitable[None]]) -> _Call:
        call = _Call(name)
        call.task = self._supervisor.spawn(self._run, call, work, name=name)
        self._pending = call
        return call

    async def _wait(self, call: _Call, hint: str) -> None:
        with anyio.move_on_after(self._max_block):
            await call.ended()
        if call.done.done:
            if call.done.error is not None:
                self._told(call)  # or not: the state says what failed
            self._supervisor.check()  # a failure of the producer says more than that the call was given up
            call.done.result()
            return
        cause = self._problem
        reason = self._trouble()
        text = f"{call.name} has not ended within max.block.ms ({in_seconds(self._max_block)}){hint}"
        raise KafkaTimeoutError(f"{text}. {reason}" if reason else text) from cause

    @property
    def _problem(self) -> KafkaError | None:
        """Why a coordinator has not done what it is asked for."""
        asked = (self._coordinator, *self._groups.values())
        return next((found.problem for found in asked if found.problem is not None), None)

    def _trouble(self) -> str:
        """What is known of why something takes long."""
        if self._problem is not None:
            return str(self._problem)
        return self._cluster.trouble or self._cluster.silence(self._max_block) or ""

    async def _run(self, call: _Call, work: Callable[[], Awaitable[None]]) -> None:
        began = self._cluster.clock()
        try:
            await work()
        except KafkaError as error:
            call.done.set_error(error)
        else:
            self._metrics.transaction_call(call.name, self._cluster.clock() - began)
            call.done.set_result(None)
        finally:
            call.done.set_error(ClosedError(f"The producer was closed before {call.name} had ended"))

    @contextmanager
    def _refusals(self, *, of_end: bool = False) -> Iterator[None]:
        """What coordinators refuse in the block becomes the state, and is raised."""
        try:
            yield
        except RefusedError as refused:
            hopeless = of_end and self._manager.state is TransactionState.ABORTING
            if refused.kind is ErrorKind.ABORTABLE and not hopeless:
                self._manager.fail(refused.error)
            else:
                self._manager.fail_for_good(refused.error)
            raise refused.error from refused.error.__cause__
        finally:
            self._wake_sender()

    def _raise_error(self) -> None:
        """Raise why the transaction cannot be committed, if it cannot."""
        if self._manager.error is not None:
            raise self._manager.error.with_traceback(None)

    # ------------------------------------------------------------------ the id and its epoch

    async def _initialize(self, present: ProducerIdAndEpoch = NO_PRODUCER_ID) -> None:
        request = InitProducerIdRequest(
            transactional_id=self._manager.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=present.producer_id,
            producer_epoch=present.epoch,
        )
        with self._refusals():
            answer: InitProducerIdResponse = await self._coordinator.ask(
                TransactionRequest.INIT_PRODUCER_ID,
                request,
                single_code,
                versions=INIT_BUMP_VERSIONS if present.valid else INIT_VERSIONS,
            )
            self._manager.initialized(answer.producer_id, answer.producer_epoch, self._coordinator.version)

    # ------------------------------------------------------------------ the end

    async def _commit(self) -> None:
        await self._through()
        self._raise_error()
        try:
            await self._end(committed=True)
        except KafkaError:
            self._raise_error()
            raise

    async def _hand_over(self) -> None:
        await self._through()
        self._raise_error()
        self._manager.handed_over()

    async def _abort(self) -> None:
        await self._through()
        self._reports.take_failures()  # whoever aborts knows that they failed
        if self._manager.state is TransactionState.FATAL_ERROR:
            self._raise_error()
        await self._end(committed=False)

    async def _through(self) -> None:
        """Wait until what belongs to the transaction is through: records, offsets, partitions that are being added."""
        batches = self._buffer.begin_flush()
        try:
            if self._manager.state in _WAITING:
                with anyio.CancelScope() as self._delivering:
                    await wait_for_batches(batches)
        finally:
            self._delivering = None
            self._buffer.end_flush()
        for task in [*self._offsets, self._adding]:
            if task is not None:
                await task.wait()

    async def _end(self, *, committed: bool) -> None:
        manager = self._manager
        following = NO_PRODUCER_ID
        if manager.started:
            request = EndTxnRequest(
                transactional_id=manager.transactional_id,
                producer_id=manager.identity.producer_id,
                producer_epoch=manager.identity.epoch,
                committed=committed,
            )
            with self._refusals(of_end=True):
                answer = await self._ask_to_end(request)
            following = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        can_bump = self._coordinator.speaks(InitProducerIdRequest) >= INIT_BUMP_VERSIONS.lowest
        if not manager.ended(following, version=self._coordinator.version, can_bump=can_bump):
            return
        try:
            await self._initialize(manager.identity)
        except KafkaError:
            if not committed:
                raise
            # it is committed, which nobody must take for a failure; the next call raises what the state is

    async def _ask_to_end(self, request: EndTxnRequest) -> EndTxnResponse:
        try:
            answer: EndTxnResponse = await self._coordinator.ask(
                TransactionRequest.END,
                request,
                single_code,
                versions=END_VERSIONS[self._manager.version],
                also=(InitProducerIdRequest,),
            )
        except RefusedError as refused:
            # Version 2 refuses so what the coordinator has aborted already, after transaction.timeout.ms. It still
            # knows this epoch as that transaction's, takes an abort for its repetition, and tells the next epoch.
            aborted = refused.error.code == ErrorCode.INVALID_TXN_STATE and request.committed
            if aborted and self._manager.version != V1:
                raise RefusedError(_timed_out(refused.error), ErrorKind.ABORTABLE) from refused.error
            raise
        return answer

    # ------------------------------------------------------------------ partitions

    def add_partitions(self) -> None:
        """Have the coordinator add the partitions that wait for it."""
        if self._adding is None:
            self._adding = self._supervisor.spawn(self._add_partitions, name="add partitions to the transaction")
            self._adding.on_done(self._has_added)

    def _has_added(self, task: TaskHandle) -> None:
        self._adding = None
        self._wake_sender()

    async def _add_partitions(self) -> None:
        manager = self._manager
        while partitions := manager.take_new():
            try:
                with self._refusals():
                    await self._coordinator.ask(
                        TransactionRequest.ADD_PARTITIONS,
                        add_partitions_request(manager.transactional_id, manager.identity, partitions),
                        add_partitions_codes,
                        versions=ADD_PARTITIONS_VERSIONS,
                        wanted=lambda: manager.adding,
                        pause=None if manager.started else FIRST_PAUSE,
                    )
                manager.added(partitions)
            except (GivenUpError, KafkaError):
                manager.not_added()
                return

    # ------------------------------------------------------------------ offsets

    async def _send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
        before: TaskHandle | None,
    ) -> None:
        if before is not None:
            await before.wait()  # the offsets of the later call are the ones that count
        try:
            with self._refusals():
                await self._add_offsets(offsets, group)
        except GivenUpError:
            self._raise_error()
            raise IllegalStateError("The offsets were not sent: the transaction is aborted") from None
        except KafkaError as error:
            if error.code not in GONE_FROM_GROUP:
                raise
            raise CommitFailedError(
                f"The offsets of group {group.group_id!r} cannot be committed: the group has gone on without this "
                "member; abort the transaction and poll again"
            ) from error

    async def _add_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> None:
        manager = self._manager
        if not manager.adding:
            raise GivenUpError
        if manager.must_add_group(group.group_id):
            await self._coordinator.ask(
                TransactionRequest.ADD_OFFSETS,
                AddOffsetsToTxnRequest(
                    transactional_id=manager.transactional_id,
                    producer_id=manager.identity.producer_id,
                    producer_epoch=manager.identity.epoch,
                    group_id=group.group_id,
                ),
                single_code,
                wanted=lambda: manager.adding,
                pause=None if manager.started else FIRST_PAUSE,
            )
            manager.group_added(group.group_id)
        coordinator = self._groups.get(group.group_id)
        if coordinator is None:
            coordinator = CoordinatorRequests(self._cluster, group.group_id, GROUP, manager.transactional_id)
            self._groups[group.group_id] = coordinator
        if manager.version != V1:
            manager.departed()
        await coordinator.ask(
            TransactionRequest.OFFSET_COMMIT,
            offset_commit_request(manager.transactional_id, manager.identity, group, offsets),
            offset_commit_codes,
            versions=OFFSET_COMMIT_VERSIONS[manager.version, can_fence(group)],
            wanted=lambda: manager.adding,
        )

    # ------------------------------------------------------------------ the producer's end

    async def finish(self) -> None:
        """Abort the transaction that is open, or wait for its end if that is under way."""
        name, manager = self._manager.transactional_id, self._manager
        patience = max(self._max_block, self._timeout_ms / 1000)  # later the coordinator has aborted it by itself
        with anyio.move_on_after(patience) as scope:
            if self._pending is not None and self._pending.name in {COMMIT, ABORT, HAND_OVER}:
                await self._pending.ended()
            if manager.state in _LEFT_OPEN:  # also after a commit that failed
                logger.warning("The producer is closed amid a transaction of %r: it is aborted", name)
                manager.abort()
                call = self._begin(ABORT, self._abort)
                await call.ended()
                if call.done.error is not None:
                    logger.warning("The transaction of %r was not ended: %s", name, call.done.error)
        if scope.cancelled_caught:
            logger.warning(
                "The transaction of %r was not ended within transaction.timeout.ms or max.block.ms: %s",
                name, self._trouble(),
            )  # fmt: skip
