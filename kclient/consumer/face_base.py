"""What the faces of a consumer and of a share consumer have in common, and what they need of their parts."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from kclient.arguments import check_timeout, shown
from kclient.cluster.own_metrics import OwnMetrics
from kclient.consumer.patterns import SubscriptionPattern
from kclient.records import ConsumerRecord
from kclient.unclosed import finalizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.cluster.reporting import MetricsReporting
    from kclient.concurrency import Supervisor
    from kclient.config import ConfigInput
    from kclient.consumer.actions import Script
    from kclient.consumer.life import ConsumerLife
    from kclient.consumer.notices import Notices
    from kclient.consumer.readiness import PollReadiness
    from kclient.consumer.waits import Waits
    from kclient.metrics.metric import Metrics
    from kclient.metrics.registry import MetricsRegistry
    from kclient.tracing.spans import ClientTracing

CLOSE_TIMEOUT = 30.0
"""Seconds that `close` may take by default, as in the Java client."""
LONG = 3600.0
"""Seconds that iteration waits in one poll; it polls again then."""


_UNTRACED: AbstractContextManager[Any] = nullcontext()
_IS_CONFIG = re.compile(r"[=/\n]|\.properties$")
"""Tells the text or the path of properties from the name of a topic."""


class FacedCore(Protocol):
    """One consumer of either kind without a face."""

    @property
    def clock(self) -> Callable[[], float]: ...
    @property
    def life(self) -> ConsumerLife: ...
    @property
    def supervisor(self) -> Supervisor: ...
    @property
    def waits(self) -> Waits: ...
    @property
    def notices(self) -> Notices: ...
    @property
    def reporting(self) -> MetricsReporting: ...
    @property
    def default_timeout(self) -> float: ...
    @property
    def tracing(self) -> ClientTracing | None: ...
    async def start(self) -> None: ...
    def forgotten(self, face: object, remedy: str) -> None: ...
    def closing(self, caller: int) -> bool: ...
    async def closed_by_another(self, timeout: float) -> None: ...
    async def shut(self, left: float | None = None) -> None: ...
    def wakeup(self) -> None: ...
    def look_again(self) -> None: ...


class FacedCollector(Protocol):
    """Hands out records."""

    def settle(self) -> None: ...
    def put_back(self) -> None: ...
    def next_record(self) -> ConsumerRecord | None: ...
    def refill(self) -> bool | None: ...


class FacedBuffer(Protocol):
    """What was taken and is not the user's yet."""

    taken: Any


class FaceBase(OwnMetrics):
    """The part of a consumer of either kind that is the same for async and blocking code."""

    _clock = staticmethod(time.monotonic)
    _remedy = ""
    """What to do instead of forgetting to close it."""
    _core: FacedCore
    _collector: FacedCollector
    _buffer: FacedBuffer
    _readiness: PollReadiness

    @finalizer
    def __del__(self) -> None:
        core = getattr(self, "_core", None)  # there is none where a setting was wrong
        if core is not None:
            core.forgotten(self, self._remedy)

    def _check(self) -> None:
        """Raise if the consumer is not usable; the blocking one starts here.

        Raises:
            KafkaError: It failed, or was closed, or not started.
        """
        self._core.life.check()

    def _check_here(self) -> None:
        """Raise before a lock is taken that nobody in this process can give back; the blocking consumer knows when."""

    def _poll_script(self, deadline: float, take: Callable[[], Any]) -> Script:
        """What `poll` does."""
        raise NotImplementedError

    def _departure(self, timeout: float, leave_group: bool | None) -> Script:
        """What `close` does while the tasks still run, and their end."""
        raise NotImplementedError

    def wakeup(self) -> None:
        """End the wait of a task inside `poll` with `WakeupError`, or the next one; may be called from any thread."""
        self._core.wakeup()

    def processing(self, records: ConsumerRecord | Collection[ConsumerRecord]) -> AbstractContextManager[Any]:
        """A block in which records are processed, for `with`, in async code too: a span while `tracing` is on.

        The span (`process TOPIC`, kind CONSUMER) is the current one in the block, so that what is done and sent there
        belongs to it; an exception that leaves the block is recorded. It is linked to the spans in which the records
        were sent. That of a single record is also its parent, unless the block is within another span, which is the
        parent then. While tracing is off, nothing is done.

        Args:
            records: A record; or several, such as what `poll` returned, for one span over all of them.

        Returns:
            The block, whose value is the `opentelemetry.trace.Span`, or None while tracing is off.

        Raises:
            TypeError: It is neither a record nor a collection of records.
        """
        tracing = self._core.tracing
        if isinstance(records, ConsumerRecord):
            return _UNTRACED if tracing is None else tracing.processing((records,), batch=False)
        if not isinstance(records, Collection):  # an iterator would have nothing left for the block
            raise TypeError(
                "processing needs a record that poll returned, or a list of them (an iterator would be used up); "
                f"not {shown(records)}"
            )
        if tracing is None:
            return _UNTRACED
        several = list(records)
        for record in several:
            if not isinstance(record, ConsumerRecord):
                raise TypeError(f"processing needs records that poll returned; {shown(record)} is none")
        return tracing.processing(several, batch=True)

    def _metrics_registry(self) -> MetricsRegistry:
        self._check_here()
        return self._core.reporting.registry

    def metrics(self) -> Metrics:
        """The metrics under the names, groups and tags of the Java client's; may be called in any thread.

        `consumer.metrics().value("records-lag", topic="flights", partition=0)` is one of them. Rates, averages,
        extremes and percentiles are those of the last `metrics.num.samples` windows, each `metrics.sample.window.ms`
        long, totals those since the consumer was made. Times are in milliseconds, but for names that say another unit;
        sizes in bytes.
        """
        self._check_here()
        return self._core.reporting.registry.metrics()

    def _seconds(self, timeout: float | None) -> float:
        check_timeout(timeout)
        return self._core.default_timeout if timeout is None else timeout


def deadline_of(core: FacedCore, timeout: float) -> float:
    """When a poll has waited long enough, on the core's clock.

    Raises:
        TypeError: It is not a number.
        ValueError: It is negative, or none (nan).
    """
    check_timeout(timeout, none=None, hint="; iterate over the consumer to wait for ever")
    return core.clock() + timeout


def close_timeout(timeout: float | None) -> float:
    """How long `close` waits, in seconds.

    Raises:
        TypeError: It is not a number.
        ValueError: It is negative, or none (nan).
    """
    check_timeout(timeout, none=f"for {CLOSE_TIMEOUT:g}")
    return CLOSE_TIMEOUT if timeout is None else timeout


def split_arguments(
    given: Iterable[Any], config: ConfigInput, client: str = "Consumer"
) -> tuple[list[str], ConfigInput]:
    """Tell topics from a configuration among the positional arguments of a consumer.

    Raises:
        TypeError: There are two configurations, topics in a list, or a pattern.
    """
    topics: list[str] = []
    for item in given:
        if isinstance(item, str) and not _IS_CONFIG.search(item):
            topics.append(item)
        elif isinstance(item, list | tuple | set | frozenset):
            raise TypeError(
                f"topics are given one by one, as in {client}('a', 'b'): write *{shown(item)}, or subscribe to it"
            )
        elif isinstance(item, re.Pattern | SubscriptionPattern):
            raise TypeError(f"a pattern is given to subscribe, as in consumer.subscribe({shown(item)})")
        elif config is None:
            config = item
        else:
            raise TypeError("the configuration is given twice")
    return topics, config
