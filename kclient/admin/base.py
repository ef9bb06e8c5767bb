"""What the admin client's parts share: requests to the right broker, with retries."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import anyio

from kclient.admin.answers import LateAnswers, check_code, failure, left_out, told_late
from kclient.admin.types import raise_failures
from kclient.arguments import check_timeout, in_seconds
from kclient.cluster import GROUP, Cluster, ClusterSnapshot, Trial, retry, topic_error
from kclient.cluster.asking import every_answer
from kclient.cluster.controllers import INSTEAD
from kclient.concurrency import Supervisor
from kclient.config import AdminConfig
from kclient.errors import (
    BrokerIdNotRegisteredError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NotControllerError,
    ThrottlingQuotaExceededError,
    UnknownTopicOrPartitionError,
    UnsupportedEndpointTypeError,
    UnsupportedVersionError,
)
from kclient.net.connection import Connection
from kclient.protocol.message import ApiMessage
from kclient.protocol.registry import ApiKey
from kclient.types import Node, TopicPartition

logger: logging.Logger = logging.getLogger("kclient.admin")

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
M = TypeVar("M", bound=ApiMessage)

Outcome: TypeAlias = KafkaError | None
"""What became of one of the things that a call asked for."""

# Brokers learn of a topic that was just created a moment later than its creator does; a name that is wrong
# should not cost a whole `default.api.timeout.ms`.
_UNKNOWN_TOPIC_PATIENCE = 2.0
"""Seconds in which an unknown topic or partition is asked for again."""
_LONGEST = 2**31 - 1
"""Milliseconds that a request can name."""
_PASSING = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.THROTTLING_QUOTA_EXCEEDED})
"""What controllers answer that another attempt may cure. (Other codes are retriable in other places only: a topic that
is to be deleted and is unknown stays unknown.)"""
_SHORTEST = 1.0
"""Seconds that a broker is given at least before another one is asked to change something."""


class AdminBase:
    """Holds the cluster; the parts add their calls."""

    _cluster: Cluster
    _config: AdminConfig
    _supervisor: Supervisor

    def _check(self) -> None:
        """Raises the stored failure of a background task, or that the client was closed."""
        raise NotImplementedError

    def _milliseconds(self, timeout: float | None) -> int:
        """How long the broker may take, from a timeout in seconds."""
        check_timeout(timeout)
        return self._config.request_timeout_ms if timeout is None else max(1, int(min(timeout * 1000, _LONGEST)))

    # ------------------------------------------------------------------ attempts

    def _seconds(self, timeout: float | None) -> float:
        """The time of a whole call."""
        check_timeout(timeout)
        return self._config.default_api_timeout_ms / 1000 if timeout is None else timeout

    def _patience_ends(self, timeout: float | None, patience: float = _UNKNOWN_TOPIC_PATIENCE) -> float:
        """Until when to ask again for what is unknown: well before the call's time is over, or nobody hears that it is.

        Args:
            timeout: the call's time in seconds; None takes `default.api.timeout.ms`.
            patience: seconds at most.
        """
        return self._cluster.clock() + min(patience, self._seconds(timeout) / 2)

    @contextmanager
    def _steps(self, timeout: float | None, what: str) -> Iterator[Callable[[], float]]:
        """The time of a call that makes several others in turn: gives each of them what is left.

        Raises:
            KafkaTimeoutError: one of them did not succeed in what was left to it; the text names the whole call first.
        """
        seconds = self._seconds(timeout)
        ends = self._cluster.clock() + seconds
        try:
            yield lambda: max(ends - self._cluster.clock(), 0.0)
        except KafkaTimeoutError as error:
            raise KafkaTimeoutError(f"{what} did not succeed within {in_seconds(seconds)}: {error}") from error

    async def _retrying(self, attempt: Callable[[Trial], Awaitable[T]], timeout: float | None, what: str) -> T:
        """Makes attempts until one succeeds or fails for good, within the time and the `retries` of one call.

        Raises:
            KafkaTimeoutError: none succeeded in time; it names the brokers that were tried, and why each failed, or
                else says why the last attempt failed.
            UnsupportedEndpointTypeError: controllers are talked to, and do not serve it.
            KafkaError: an error that another attempt cannot cure, or the last one when `retries` is used up.
        """
        try:
            return await self._trying(attempt, timeout, what)
        except UnsupportedVersionError as error:
            if not self._cluster.controllers:
                raise
            raise UnsupportedEndpointTypeError(f"{error.message}; of a controller: {INSTEAD}") from error

    async def _trying(self, attempt: Callable[[Trial], Awaitable[T]], timeout: float | None, what: str) -> T:
        seconds = self._seconds(timeout)
        self._check()
        trial = Trial()
        last: KafkaError | None = None

        async def failed(error: KafkaError) -> None:
            nonlocal last
            last = error
            if error.refresh_metadata:
                self._cluster.request_update()
            if isinstance(error, NotControllerError):
                await self._cluster.refresh()

        with anyio.move_on_after(seconds):
            return await retry(
                lambda: attempt(trial), self._cluster.retry_backoff, retries=self._config.retries, on_failure=failed
            )
        reason = f"tried {trial}" if trial else self._cluster.trouble or self._cluster.silence(seconds)
        if last is not None and trial.cause is None and self._cluster.error is None:
            # no broker failed: it was asked a moment ago, and what failed before says more
            reason = f"{reason}; before that: {last}" if reason else str(last)
        text = f"{what} did not succeed within {in_seconds(seconds)}"
        raise KafkaTimeoutError(f"{text}: {reason}" if reason else text) from trial.cause or self._cluster.error or last

    async def _each(
        self,
        wanted: Mapping[K, V],
        attempt: Callable[[Trial, Mapping[K, V]], Awaitable[Mapping[K, Outcome]]],
        *,
        timeout: float | None,
        what: str,
        name: Callable[[K], str] = str,
        retry_on_quota_violation: bool = True,
        done: type[KafkaError] | None = None,
    ) -> dict[str, KafkaError]:
        """As `_retrying`, for a call about several things: each is asked for until it is done or refused for good.

        Args:
            wanted: what to ask for.
            attempt: asks for some of them and tells what became of each.
            timeout: seconds; None takes `default.api.timeout.ms`.
            what: the call, as the start of a sentence.
            name: the name of a thing in errors.
            retry_on_quota_violation: whether to ask again for what the broker puts off because of a quota (KIP-599).
            done: what the broker answers where it has been done already.

        Returns:
            Why the others were refused, by name.
        """
        left = dict(wanted)
        last: dict[K, KafkaError] = {}
        failures: dict[str, KafkaError] = {}
        unanswered: set[K] = set()

        async def ask(trial: Trial) -> None:
            try:
                outcomes = await attempt(trial, left)
            except KafkaError:
                unanswered.update(left)
                raise
            again: KafkaError | None = None
            for key, error in outcomes.items():
                if key not in left:
                    continue  # nobody asked for that
                put_off = isinstance(error, ThrottlingQuotaExceededError)
                if error is not None and error.code in _PASSING and (retry_on_quota_violation or not put_off):
                    last[key] = again = error
                    if error.code == ErrorCode.REQUEST_TIMED_OUT:
                        unanswered.add(key)
                    continue
                del left[key]
                if error is not None and done is not None and isinstance(error, done) and key in unanswered:
                    error = told_late(error)
                if error is not None:
                    failures[name(key)] = error
            if again is not None:
                raise again

        if left:
            try:
                await self._retrying(ask, timeout, what)
            except KafkaError as error:
                if not left:
                    raise
                for key in left:
                    put_off = isinstance(last.get(key), ThrottlingQuotaExceededError)
                    failures[name(key)] = last[key] if put_off else error
            else:
                failures |= left_out(left, (), name)
        return failures

    async def _exchange(
        self,
        trial: Trial,
        connection: Connection,
        message: ApiMessage,
        response: type[M],
        *,
        check: Callable[[M], object] | None = None,
        max_version: int | None = None,
    ) -> M:
        """Sends a request; `check` raises what makes the whole answer void."""
        with trial.asking(connection.address):
            answer = await self._cluster.request_on(connection, message, response=response, max_version=max_version)
            if check is not None:
                check(answer)
            return answer

    # ------------------------------------------------------------------ whom to ask

    async def _ask_any(
        self,
        message: ApiMessage,
        response: type[M],
        *,
        timeout: float | None,
        what: str,
        check: Callable[[M], object] | None = None,
    ) -> M:
        """Asks something that any broker can answer; of another one too, where one does not answer for a while.

        Of controllers it is the active one that is asked: the others do not know, or do not tell.
        """

        async def ask(trial: Trial) -> M:
            if self._cluster.controllers:
                return await self._exchange(trial, await self._active_controller(trial), message, response, check=check)
            return await self._cluster.ask_any(
                lambda connection: self._exchange(trial, connection, message, response, check=check), trial=trial
            )

        return await self._retrying(ask, timeout, what)

    async def _ask_controller(
        self, trial: Trial, message: Callable[[Connection], ApiMessage], response: type[M], timeout: float | None
    ) -> M:
        """Asks the controller, or with KRaft any broker, since all of them pass requests on to it.

        Where there are other brokers, one that does not answer is left in time for another: within half of the call's
        time. (That the first carries it out all the same is told where it matters, see `_each`.)

        Args:
            trial: is told what is tried.
            message: makes the request for a connection.
            response: its response class.
            timeout: the call's time in seconds; None takes `default.api.timeout.ms`.
        """
        others = len(self._cluster.snapshot.nodes or (await self._cluster.refresh()).nodes) > 1
        connection = None if self._cluster.controllers else await self._cluster.connection(trial=trial)
        # a controller, or a broker of the times before KRaft
        if connection is None or ApiKey.DESCRIBE_QUORUM not in connection.api_versions:
            connection = await self._active_controller(trial)
            others = False
        seconds = self._seconds(timeout)
        with anyio.move_on_after(max(seconds / 2, _SHORTEST) if others else None), trial.asking(connection.address):
            return await self._cluster.request_on(connection, message(connection), response=response)
        text = f"no answer within {in_seconds(max(seconds / 2, _SHORTEST))}"
        late = KafkaTimeoutError(f"{connection.address}: {text}")
        with trial.asking(connection.address):
            raise late

    async def _active_controller(self, trial: Trial) -> Connection:
        controller = self._cluster.snapshot.controller or (await self._cluster.refresh()).controller
        if controller is None:
            raise NotControllerError("The cluster has no controller at the moment")
        return await self._cluster.connection(controller.id, trial=trial)

    async def _answer_of_controller(
        self,
        message: Callable[[Connection], ApiMessage],
        response: type[M],
        *,
        timeout: float | None,
        what: str,
        done: type[KafkaError] | tuple[type[KafkaError], ...] = (),
    ) -> M:
        """As `_ask_controller`, until it is answered without an error of the whole answer, or refused for good.

        `done`: what the broker answers where it has been done already.
        """
        attempts = LateAnswers(done)

        async def ask(trial: Trial) -> M:
            with attempts.one():
                answer: Any = await self._ask_controller(trial, message, response, timeout)
                check_code(answer.error_code, what, answer.error_message)
                found: M = answer
                return found

        return await self._retrying(ask, timeout, what)

    async def _ask_node(
        self, node_id: int | None, message: ApiMessage, response: type[M], timeout: float | None, what: str
    ) -> M:
        """Asks one broker, or any for None."""
        if node_id is None:
            return await self._ask_any(message, response, timeout=timeout, what=what)

        async def ask(trial: Trial) -> M:
            return await self._exchange(trial, await self._at_broker(node_id, trial), message, response)

        return await self._retrying(ask, timeout, what)

    async def _at_broker(self, node_id: int, trial: Trial) -> Connection:
        """A connection to a broker that the caller has named.

        Raises:
            BrokerIdNotRegisteredError: there is none of this id, nor was there when it was asked anew.
        """
        if node_id not in self._cluster.snapshot.nodes:
            known = (await self._cluster.refresh()).nodes
            if node_id not in known:
                ids = ", ".join(map(str, sorted(known))) or "none"
                raise BrokerIdNotRegisteredError(f"No broker of the cluster has the id {node_id} now; it has: {ids}")
        return await self._cluster.connection(node_id, trial=trial)

    async def _at_coordinator(
        self,
        key: str,
        operation: Callable[[Trial, Connection, Node], Awaitable[T]],
        *,
        timeout: float | None,
        what: str,
        key_type: int = GROUP,
    ) -> T:
        """Runs the operation at the coordinator of a group, or transactional id, looked up anew for each attempt."""

        async def ask(trial: Trial) -> T:
            node = await self._cluster.find_coordinator(key, key_type, trial=trial)
            return await operation(trial, await self._cluster.connection(node.id, trial=trial), node)

        return await self._retrying(ask, timeout, what)

    async def _each_named(
        self,
        names: Collection[str],
        ask: Callable[[str], Awaitable[None]],
        what: str,
        results: Mapping[str, object] | None = None,
    ) -> None:
        """Does something with each of these names, with all of them at the same time.

        Args:
            names: the names.
            ask: does it with one.
            what: the call, as the start of a sentence.
            results: what came of it, by name.
        """
        self._check()
        outcomes = await every_answer(dict.fromkeys(names), ask, supervisor=self._supervisor)
        raise_failures(what, {name: error for name, error in outcomes.items() if error is not None}, results)

    async def _at_every_broker(
        self,
        operation: Callable[[Trial, Connection, int], Awaitable[T]],
        *,
        timeout: float | None,
        what: str,
        brokers: Collection[int] | None = None,
    ) -> tuple[dict[int, T], dict[int, KafkaError]]:
        """Runs the operation at all brokers at once; who has answered is not asked again.

        Args:
            operation: asks a broker.
            timeout: the call's time in seconds; None takes `default.api.timeout.ms`.
            what: the call, as the start of a sentence.
            brokers: at which; None for all that are in the cluster.

        Returns:
            What each has answered, and why the others have not.

        Raises:
            KafkaError: none has answered, or one has refused for good.
        """
        told: dict[int, T] = {}
        waiting: set[int] = set()
        errors: dict[int, KafkaError] = {}

        async def attempt(trial: Trial) -> None:
            nodes = (await self._cluster.refresh()).nodes.keys() if brokers is None else brokers
            waiting.clear()
            waiting.update(node_id for node_id in nodes if node_id not in told)

            async def ask(node_id: int) -> None:
                try:
                    if brokers is None:  # it may be leaving just now, which passes
                        connection = await self._cluster.connection(node_id, trial=trial)
                    else:
                        connection = await self._at_broker(node_id, trial)
                    told[node_id] = await operation(trial, connection, node_id)
                except KafkaError as error:
                    errors[node_id] = error
                    raise
                waiting.discard(node_id)

            await self._all(list(waiting), ask)

        try:
            await self._retrying(attempt, timeout, what)
        except KafkaError as error:
            if not told or not error.retriable:
                raise
            left = {node_id: errors.get(node_id, error) for node_id in sorted(waiting)}
            for node_id, reason in left.items():
                logger.warning("%s: broker %d has not answered, what it knows is left out: %s", what, node_id, reason)
            return told, left
        return told, {}

    async def _at_leaders(
        self,
        partitions: Collection[TopicPartition],
        operation: Callable[
            [Trial, Connection, Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, tuple[int, T]]]
        ],
        *,
        timeout: float | None,
        what: str,
    ) -> dict[TopicPartition, T]:
        """Runs the operation at all leaders at once, with the partitions each leads; what came is not asked again.

        A partition that fails for good, or whose leader does, keeps none of the others from being answered.

        Args:
            partitions: what it is about.
            operation: asks a broker; an error code and a value for each partition.
            timeout: the call's time in seconds; None takes `default.api.timeout.ms`.
            what: the call, as the start of a sentence.
        """
        results: dict[TopicPartition, T] = {}
        failures: dict[TopicPartition, KafkaError] = {}
        patience_ends = self._patience_ends(timeout)

        async def attempt(trial: Trial) -> None:
            missing = [tp for tp in partitions if tp not in results and tp not in failures]
            if not missing:
                return
            snapshot = await self._cluster.refresh({tp.topic for tp in missing})
            patient = self._cluster.clock() < patience_ends
            by_leader, troubles = _by_leader(snapshot, missing, patient)

            async def ask(node_id: int) -> None:
                asked = by_leader[node_id]
                try:
                    connection = await self._cluster.connection(node_id, trial=trial)
                    told = await operation(trial, connection, asked)
                except KafkaError as error:
                    troubles.update(dict.fromkeys(asked, error))
                    return
                for tp in asked:
                    if tp not in told:
                        troubles[tp] = left_out([tp], told)[str(tp)]
                        continue
                    code, value = told[tp]
                    refusal = failure(code, str(tp))
                    if refusal is None:
                        results[tp] = value
                    else:
                        troubles[tp] = refusal

            await self._all(by_leader, ask)
            failures.update({tp: error for tp, error in troubles.items() if not error.retriable})
            again = next((error for error in troubles.values() if error.retriable), None)
            if again is not None:
                raise again

        try:
            await self._retrying(attempt, timeout, what)
        except KafkaError as error:
            if results:
                error.results = dict(results)
            if not failures:
                raise
            failures.update({tp: error for tp in partitions if tp not in results and tp not in failures})
        raise_failures(what, {str(tp): error for tp, error in failures.items()}, results)
        return {tp: results[tp] for tp in partitions}

    async def _all(self, candidates: Collection[K], ask: Callable[[K], Awaitable[None]]) -> None:
        """Asks all at once, and waits for all; raises an error that is final, or else one of the others."""
        outcomes = await every_answer(candidates, ask, supervisor=self._supervisor)
        errors = sorted((error for error in outcomes.values() if error is not None), key=lambda error: error.retriable)
        if errors:
            raise errors[0]


def _by_leader(
    snapshot: ClusterSnapshot, partitions: Collection[TopicPartition], patient: bool
) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, KafkaError]]:
    """The partitions by their leaders, and why others have none."""
    led: dict[int, list[TopicPartition]] = defaultdict(list)
    troubles: dict[TopicPartition, KafkaError] = {}
    for tp in partitions:
        error = topic_error(snapshot, tp.topic)
        leader = snapshot.leader_id(tp)
        if error is not None and not isinstance(error, UnknownTopicOrPartitionError):
            troubles[tp] = error
        elif snapshot.partition(tp) is None:
            troubles[tp] = UnknownTopicOrPartitionError(f"{tp} does not exist", retriable=patient)
        elif leader is None:
            troubles[tp] = LeaderNotAvailableError(f"{tp} has no leader at the moment")
        else:
            led[leader].append(tp)
    return led, troubles


def is_missing(snapshot: ClusterSnapshot, tp: TopicPartition) -> bool:
    """Whether the metadata say that there is no such partition."""
    error = topic_error(snapshot, tp.topic)
    return snapshot.partition(tp) is None and (error is None or isinstance(error, UnknownTopicOrPartitionError))
