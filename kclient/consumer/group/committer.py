"""Commits offsets one after the other, in the order in which they were asked for."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from kclient.cluster import retry
from kclient.concurrency import Completion, MomentLock, Wakeup
from kclient.consumer.group.coordinator import CHANNEL
from kclient.consumer.group.model import ConsumerGroupMetadata
from kclient.consumer.group.offsets import COMMIT_LAST_WITH_NAMES, commit_request, read_commit
from kclient.errors import KafkaError, KafkaTimeoutError, RetriableCommitFailedError, UnknownTopicOrPartitionError
from kclient.protocol.errors import EncodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kclient.cluster import Cluster
    from kclient.consumer.attempts import Attempts
    from kclient.consumer.group.auto_commit import AutoCommit
    from kclient.consumer.group.coordinator import CoordinatorAccess
    from kclient.consumer.group.membership import Membership
    from kclient.consumer.group.metrics import GroupMetrics
    from kclient.consumer.group.offsets import CommitAnswer
    from kclient.consumer.interfaces import CommitCallback
    from kclient.consumer.notices import Notices
    from kclient.consumer.subscription import Places, SubscriptionState
    from kclient.tracing.spans import ClientTracing, OpenSpan
    from kclient.types import OffsetAndMetadata, TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer")


@dataclass(slots=True, eq=False)
class Commit:
    """Offsets to commit."""

    places: Places
    deadline: float
    """Until when to try again; one attempt is made in any case."""
    callback: CommitCallback | None = None
    automatic: bool = False
    """Whether it is an auto commit: a failure is logged, and partitions that do not exist any more are left out."""
    identity: ConsumerGroupMetadata | KafkaError | None = None
    """As whom it was asked for, or why there was no membership to commit in; None while it has not been."""
    done: Completion[None] = field(default_factory=Completion)
    problem: KafkaError | None = None
    """Why the last attempt failed."""
    abandoned: bool = False
    """Nobody waits any more: no further attempts."""
    looking: anyio.CancelScope | None = None
    """While the coordinator is looked for, and nothing has been sent yet."""
    unknown: set[TopicPartition] = field(default_factory=set)
    """Partitions that do not exist (any more), of which nothing is committed."""
    span: OpenSpan | None = None
    """Ends when it is through, while tracing is on."""

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets by partition."""
        return self.places.offsets

    def abandon(self) -> None:
        """Nobody waits any more: what has not been sent is not sent, so that the commits behind need not wait."""
        self.abandoned = True
        if self.looking is not None:
            self.looking.cancel()


class Committer:
    """The queue of commits and the task that works it off.

    Args:
        clock: Monotonic time in seconds.
        lock: Guards the state machines.
        member: Says as whom to commit, and is told of refusals.
        coordinator: Whom to send commits to.
        subscriptions: Know which topics were deleted.
        cluster: Sends them.
        attempts: Says why a commit is late.
        auto_commit: Is told how its commits ended.
        notices: Tell callbacks and interceptors.
        metrics: Count commits.
        update_readiness: Called when poll may have somebody to tell.
        default_timeout: `default.api.timeout.ms`, in seconds.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        lock: MomentLock,
        member: Membership,
        coordinator: CoordinatorAccess,
        subscriptions: SubscriptionState,
        cluster: Cluster,
        attempts: Attempts,
        auto_commit: AutoCommit,
        notices: Notices,
        metrics: GroupMetrics,
        update_readiness: Callable[[], None],
        default_timeout: float,
    ) -> None:
        self._clock = clock
        self._lock = lock
        self._member = member
        self._coordinator = coordinator
        self._subscriptions = subscriptions
        self._cluster = cluster
        self._late = attempts.late
        self._auto_commit = auto_commit
        self._notices = notices
        self._metrics = metrics
        self._update_readiness = update_readiness
        self._default_timeout = default_timeout
        self._queue: deque[Commit] = deque()
        self._current: Commit | None = None
        self.handing_over: Commit | None = None
        """The commit that a rebalance waits for, over several polls if need be."""
        self.wakeup: Wakeup = Wakeup()
        """Has the task look at the queue."""
        self._ended: KafkaError | None = None
        """Why nobody will commit any more."""

    @property
    def busy(self) -> bool:
        """Whether a commit is due or under way."""
        return self._current is not None or bool(self._queue)

    def put(self, commit: Commit) -> None:
        """Commit after everything asked for before; may be called from any thread.

        Whatever becomes of the membership while it waits, the commit is made as the member of now: else it could set
        back what others have committed since, and no broker could tell.
        """
        with self._lock:
            ended = self._ended
            if ended is None:
                commit.identity = self._identity()
                self._queue.append(commit)
        if ended is None:
            self.wakeup.set()
        else:
            self._tell(commit, ended)

    def _identity(self) -> ConsumerGroupMetadata | KafkaError:
        """As whom to commit what is asked for now, or why not."""
        if not self._subscriptions.uses_group:
            return ConsumerGroupMetadata(self._member.settings.group_id)
        try:
            return self._member.commit_identity()
        except KafkaError as error:
            return error

    async def commit(self, places: Places, timeout: float) -> None:
        """Commit and wait for it.

        Raises:
            CommitFailedError: The consumer lost its partitions meanwhile.
            KafkaTimeoutError: It did not succeed in time; the text says why.
        """
        if not places.offsets:
            return None
        began = self._clock()
        commit = Commit(places, began + timeout)
        self.put(commit)
        try:
            with anyio.move_on_after(timeout):
                return await commit.done.wait()
        except KafkaError as error:
            if not error.retriable:
                raise
            commit.problem = error  # there was no time left for another attempt
        finally:
            self._metrics.commit_time.add(self._clock() - began)
            if not commit.done.done:
                commit.abandon()
        raise self._late("The commit", timeout, commit.problem)

    def give_up_handing_over(self) -> None:
        """The rebalance waits no longer."""
        commit, self.handing_over = self.handing_over, None
        if commit is not None and not commit.done.done:
            commit.abandon()

    async def drained(self, timeout: float) -> None:
        """Wait until every commit asked for so far is through, or the time is over."""
        with anyio.move_on_after(timeout):
            for commit in self._pending():
                with contextlib.suppress(KafkaError):
                    await commit.done.wait()

    async def settled(self, commit: Commit, until: float) -> bool:
        """Wait until a commit is through, whatever its outcome; False if it was not by a time."""
        with anyio.move_on_after(max(until - self._clock(), 0)), contextlib.suppress(Exception):
            await commit.done.wait()  # what went wrong is logged, and raised by the committer's failure
        return commit.done.done

    def fail(self, error: KafkaError) -> None:
        """The task has died, or ends: nobody will commit any more, and whoever waits or is to be called is told."""
        with self._lock:
            self._ended = self._ended or error
        self.give_up(error)

    def give_up(self, error: KafkaError) -> None:
        """Nothing asked for so far is waited for any more; whoever waits or is to be called is told."""
        with self._lock:
            pending = self._pending()
            self._queue.clear()
        for commit in pending:
            self._tell(commit, error)

    def _pending(self) -> list[Commit]:
        return ([] if self._current is None else [self._current]) + list(self._queue)

    async def run(self) -> None:
        """Work the queue off until cancelled."""
        while True:
            while self._queue:
                commit = self._current = self._queue.popleft()
                await self._work(commit)
                self._current = None  # not if that failed: `fail` tells whoever waits for it
            await self.wakeup.wait()

    async def _work(self, commit: Commit) -> None:
        try:
            await self._attempts(commit)
        except (KafkaError, EncodeError) as error:
            self._finish(commit, error if isinstance(error, KafkaError) else KafkaError(str(error)))
        else:
            self._finish(commit, None)

    async def _attempts(self, commit: Commit) -> None:
        async def once() -> None:
            try:
                await self._attempt(commit)
            except KafkaError as error:
                if error.retriable:
                    commit.problem = error
                raise

        await retry(
            once,
            self._cluster.retry_backoff,
            seconds_left=lambda: 0.0 if commit.abandoned else commit.deadline - self._clock(),
        )

    async def _attempt(self, commit: Commit) -> None:
        node = None
        with anyio.CancelScope() as commit.looking:
            if not commit.abandoned:
                patience = max(commit.deadline - self._clock(), self._default_timeout / 10)
                node = await self._coordinator.node(patience)
        commit.looking = None
        if node is None:
            raise KafkaTimeoutError("Nobody waits for the commit any more")
        identity = commit.identity
        assert identity is not None
        if isinstance(identity, KafkaError):
            raise identity
        with self._lock:
            epoch = self._member.lookup.epoch
            deleted = self._subscriptions.deleted(commit.places)
            if identity.generation_id >= 0:
                identity = commit.identity = self._member.renewed(identity, commit.offsets)
        left = {tp: offset for tp, offset in commit.offsets.items() if tp not in deleted}
        if not left:
            self._miss(commit, deleted, [])
            return
        request = commit_request(identity, left, commit.places.topic_ids)
        version = None if left.keys() <= commit.places.topic_ids.keys() else COMMIT_LAST_WITH_NAMES
        began = self._clock()
        try:
            response = await self._cluster.request(node, request, max_version=version, channel=CHANNEL)
        except KafkaError as error:
            self._coordinator.failed(f"a commit failed: {error}", epoch)
            raise
        self._metrics.commits.add((self._clock() - began) * 1000)
        answer = read_commit(response, request)
        self._heed(answer, identity, epoch, commit.places)
        self._miss(commit, deleted, answer.unknown)

    def _heed(self, answer: CommitAnswer, identity: ConsumerGroupMetadata, epoch: int, places: Places) -> None:
        """Take in what the coordinator answered.

        Raises:
            KafkaError: It is not committed.
        """
        with self._lock:
            self._subscriptions.doubt({tp: places.topic_ids.get(tp) for tp in answer.unknown})
        if answer.code:
            raise self._coordinator.commit_refused(answer.code, identity, epoch, places.offsets)
        self._coordinator.answered(epoch)
        if answer.unknown:
            self._cluster.request_update()  # they may have been deleted, and created again

    def _miss(self, commit: Commit, deleted: Collection[TopicPartition], unknown: Collection[TopicPartition]) -> None:
        """What exists is committed.

        Args:
            commit: The commit.
            deleted: Partitions of topics that were deleted and created again since they were read.
            unknown: Partitions that the broker does not know.

        Raises:
            UnknownTopicOrPartitionError: There are some, and the user asked for them.
        """
        commit.unknown = {*deleted, *unknown}
        if not commit.unknown:
            return
        told = ", ".join(map(str, sorted(commit.unknown)[:5]))
        text = "such partitions do not exist (any more)"
        if deleted:
            text = "the topic that the offsets are of was deleted, and created again"
        if not commit.automatic:
            raise UnknownTopicOrPartitionError(f"{told}: {text}", retriable=not deleted)
        logger.info("auto commit: %s: %s", told, text)

    def _finish(self, commit: Commit, error: KafkaError | None) -> None:
        if commit.done.done:
            return  # it was given up in this moment
        if error is None:
            done = {tp: offset for tp, offset in commit.offsets.items() if tp not in commit.unknown}
            if done:
                self._notices.committed(done)
        if commit.automatic:
            self._note(commit, error)
        self._tell(commit, error)

    def _tell(self, commit: Commit, error: KafkaError | None) -> None:
        """A commit is through: whoever waits for it, and its callback, learn how it ended."""
        if commit.done.done:
            return
        (self._metrics.committed if error is None else self._metrics.not_committed).add()
        if commit.callback is not None:
            shown = error
            if error is not None and error.retriable and not isinstance(error, KafkaTimeoutError):
                shown = RetriableCommitFailedError(f"The offsets were not committed, and may be later: {error}")
                shown.__cause__ = error
            self._notices.add(commit.callback, commit.offsets, shown)
        if error is None:
            commit.done.set_result(None)
        else:
            commit.done.set_error(error)
        self._update_readiness()

    def _note(self, commit: Commit, error: KafkaError | None) -> None:
        """An auto commit is through: log a failure, once until one succeeds, and say when to try again."""
        auto_commit = self._auto_commit
        if error is None:
            auto_commit.succeeded()
            return
        level = logging.DEBUG if auto_commit.failures else logging.WARNING
        logger.log(level, "auto commit of %d partitions failed: %s", len(commit.offsets), error)
        auto_commit.failed(self._clock(), again=error.retriable)


class TracedCommitter(Committer):
    """One whose commits are spans, from the call that asked for them until they are through.

    Args:
        tracing: Makes the spans.
        parts: As for `Committer`.
    """

    def __init__(self, tracing: ClientTracing, **parts: Any) -> None:
        super().__init__(**parts)
        self._tracing = tracing

    def put(self, commit: Commit) -> None:
        """As without tracing."""
        commit.span = self._tracing.settling(commit.offsets)
        super().put(commit)

    def _tell(self, commit: Commit, error: KafkaError | None) -> None:
        super()._tell(commit, error)
        if commit.span is not None:
            commit.span.end(error)
