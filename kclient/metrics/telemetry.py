"""When a client pushes its metrics to the cluster, and which (KIP-714): decisions without I/O or clock."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from math import inf, isnan
from typing import TYPE_CHECKING, Final

from kclient.errors import ErrorCode
from kclient.metrics.metric import MetricKind
from kclient.metrics.otlp import Point, Temporality
from kclient.metrics.telemetry_names import attributes, telemetry_name
from kclient.state_tables import PlainEnum, StateTable, next_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kclient.metrics.metric import Metric, MetricName

__all__ = [
    "TELEMETRY_TABLE",
    "Telemetry",
    "TelemetryEvent",
    "TelemetryPoints",
    "TelemetryState",
    "TelemetrySubscription",
]

logger: logging.Logger = logging.getLogger("kclient.metrics")

DEFAULT_INTERVAL: Final = 300.0
"""Seconds until the next attempt after one that failed, as in the Java client."""
_AGAIN: Final = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})
"""What a new subscription cures."""
_LATER: Final = frozenset({ErrorCode.TELEMETRY_TOO_LARGE, ErrorCode.THROTTLING_QUOTA_EXCEEDED})
_ALL: Final = "*"


class TelemetryState(PlainEnum):
    """Where a client stands with the cluster that may want its metrics."""

    SUBSCRIPTION_NEEDED = "subscription needed"
    """The cluster is to be asked which metrics it wants."""
    SUBSCRIPTION_IN_PROGRESS = "subscription in progress"
    """It was asked."""
    PUSH_NEEDED = "push needed"
    """It wants some; they are sent when the time has come."""
    PUSH_IN_PROGRESS = "push in progress"
    """They were sent, and not answered yet."""
    TERMINATING_PUSH_NEEDED = "terminating push needed"
    """The client closes: they are sent once more."""
    TERMINATING_PUSH_IN_PROGRESS = "terminating push in progress"
    """They were."""
    TERMINATED = "terminated"
    """Nothing is sent any more."""


class TelemetryEvent(PlainEnum):
    """What happens; the values are the labels of the diagram in the docs."""

    SENT = "a request leaves"
    SUBSCRIBED = "the cluster wants metrics"
    NOTHING_WANTED = "it wants none"
    PUSHED = "it has them"
    FAILED = "there is no answer, or one that another attempt may cure"
    REFUSED = "it will never take any"
    CLOSED = "the client closes"


TELEMETRY_TABLE: StateTable[TelemetryState, TelemetryEvent] = {
    TelemetryState.SUBSCRIPTION_NEEDED: {
        TelemetryEvent.SENT: TelemetryState.SUBSCRIPTION_IN_PROGRESS,
        TelemetryEvent.FAILED: TelemetryState.SUBSCRIPTION_NEEDED,
        TelemetryEvent.CLOSED: TelemetryState.TERMINATED,
    },
    TelemetryState.SUBSCRIPTION_IN_PROGRESS: {
        TelemetryEvent.SUBSCRIBED: TelemetryState.PUSH_NEEDED,
        TelemetryEvent.NOTHING_WANTED: TelemetryState.SUBSCRIPTION_NEEDED,
        TelemetryEvent.FAILED: TelemetryState.SUBSCRIPTION_NEEDED,
        TelemetryEvent.REFUSED: TelemetryState.TERMINATED,
        TelemetryEvent.CLOSED: TelemetryState.TERMINATED,
    },
    TelemetryState.PUSH_NEEDED: {
        TelemetryEvent.SENT: TelemetryState.PUSH_IN_PROGRESS,
        TelemetryEvent.FAILED: TelemetryState.SUBSCRIPTION_NEEDED,
        TelemetryEvent.CLOSED: TelemetryState.TERMINATING_PUSH_NEEDED,
    },
    TelemetryState.PUSH_IN_PROGRESS: {
        TelemetryEvent.PUSHED: TelemetryState.PUSH_NEEDED,
        TelemetryEvent.FAILED: TelemetryState.SUBSCRIPTION_NEEDED,
        TelemetryEvent.REFUSED: TelemetryState.TERMINATED,
        TelemetryEvent.CLOSED: TelemetryState.TERMINATING_PUSH_NEEDED,
    },
    TelemetryState.TERMINATING_PUSH_NEEDED: {
        TelemetryEvent.SENT: TelemetryState.TERMINATING_PUSH_IN_PROGRESS,
        TelemetryEvent.CLOSED: TelemetryState.TERMINATED,
    },
    TelemetryState.TERMINATING_PUSH_IN_PROGRESS: {
        TelemetryEvent.CLOSED: TelemetryState.TERMINATED,
    },
    TelemetryState.TERMINATED: {},
}


@dataclass(frozen=True, slots=True)
class TelemetrySubscription:
    """What the cluster wants of this client."""

    client_instance_id: bytes
    subscription_id: int
    compressions: Sequence[int]
    """Those that it takes, the one that it likes best first."""
    interval: float
    """Seconds from one push to the next."""
    max_bytes: int
    """The most that it takes at a time, compressed."""
    delta: bool
    """Whether sums are counted from the push before."""
    wanted: Sequence[str]
    """Beginnings of names; `*` for all."""

    def wants(self, name: str) -> bool:
        """Whether a metric is wanted, by the name that it has in telemetry."""
        return any(prefix == _ALL or name.startswith(prefix) for prefix in self.wanted)


class Telemetry:
    """The state machine of one client.

    Args:
        chance: A number from 0 to 1 for each call; spreads the first pushes of many clients.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self.state: TelemetryState = TelemetryState.SUBSCRIPTION_NEEDED
        self.subscription: TelemetrySubscription | None = None
        """The last one; its `client_instance_id` is the client's for good."""
        self.due: float = -inf
        """When the next request is due; at once before the first."""
        self._chance = chance

    def _on(self, event: TelemetryEvent) -> None:
        self.state = next_state(TELEMETRY_TABLE, self.state, event, "telemetry")

    @property
    def pushes(self) -> bool:
        """Whether the next request pushes metrics, else it asks which are wanted."""
        return self.state in {TelemetryState.PUSH_NEEDED, TelemetryState.TERMINATING_PUSH_NEEDED}

    @property
    def over(self) -> bool:
        """Whether nothing is sent any more."""
        return self.state is TelemetryState.TERMINATED

    @property
    def terminating(self) -> bool:
        """Whether the client closes."""
        return self.state in {TelemetryState.TERMINATING_PUSH_NEEDED, TelemetryState.TERMINATING_PUSH_IN_PROGRESS}

    def sent(self) -> None:
        """The request leaves that is due."""
        self._on(TelemetryEvent.SENT)

    def subscribed(self, subscription: TelemetrySubscription, now: float) -> None:
        """The cluster has told what it wants."""
        interval = subscription.interval if subscription.interval > 0 else DEFAULT_INTERVAL
        self.subscription = subscription
        if subscription.wanted:
            self._on(TelemetryEvent.SUBSCRIBED)
            interval *= 0.5 + self._chance()
        else:
            self._on(TelemetryEvent.NOTHING_WANTED)
        self.due = now + interval

    def pushed(self, now: float) -> None:
        """The cluster has what was pushed."""
        self._on(TelemetryEvent.PUSHED)
        self.due = now + self._interval

    def failed(self, now: float) -> None:
        """There was no answer, or nobody to ask."""
        self._on(TelemetryEvent.FAILED)
        self.due = now + DEFAULT_INTERVAL

    def refused(self, code: int, now: float) -> None:
        """A request was answered with an error."""
        if code in _AGAIN and self.state is TelemetryState.PUSH_IN_PROGRESS:
            self._on(TelemetryEvent.FAILED)
            self.due = now
        elif code in _AGAIN or code in _LATER:
            self._on(TelemetryEvent.FAILED)
            self.due = now + self._interval
        else:
            self._on(TelemetryEvent.REFUSED)
            self.due = inf

    def close(self) -> None:
        """The client closes, or does not wait for the last push any more."""
        if not self.over:
            self._on(TelemetryEvent.CLOSED)

    @property
    def _interval(self) -> float:
        found = 0.0 if self.subscription is None else self.subscription.interval
        return found if found > 0 else DEFAULT_INTERVAL


class TelemetryPoints:
    """Makes points of metrics, and remembers what sums were when they were pushed last.

    Args:
        began_ns: When the client was made, in nanoseconds since 1970.
    """

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns
        self._pushed: dict[MetricName, tuple[float, int]] = {}
        self._delta: bool | None = None

    def of(self, metrics: Mapping[MetricName, Metric], subscription: TelemetrySubscription, now_ns: int) -> list[Point]:
        """The points that a subscription wants.

        Args:
            metrics: What there is.
            subscription: What is wanted.
            now_ns: Nanoseconds since 1970.
        """
        if self._delta is not subscription.delta:
            self._delta = subscription.delta
            self._pushed.clear()
        points = []
        for name, metric in metrics.items():
            told = telemetry_name(name)
            if not subscription.wants(told):
                continue
            value = _number_of(metric)
            if value is None:
                continue
            labels = attributes(name, client_id=False)
            if metric.kind is MetricKind.GAUGE:
                points.append(Point(told, labels, value, now_ns))
            elif subscription.delta:
                before, since_ns = self._pushed.get(name, (0.0, self._began_ns))
                if value < before:  # it began anew: that of a broker which is at another address
                    before = 0.0
                self._pushed[name] = value, now_ns
                points.append(Point(told, labels, value - before, now_ns, Temporality.DELTA, since_ns))
            else:
                points.append(Point(told, labels, value, now_ns, Temporality.CUMULATIVE, self._began_ns))
        return points


def _number_of(metric: Metric) -> float | None:
    """The value of a metric if that is a number now; those of the application may be anything."""
    try:
        value = metric.value
        found = None if isinstance(value, str) else float(value)
    except BaseException as error:  # noqa: BLE001  (the user's code, in a thread: the other metrics are pushed)
        logger.warning("the metric %r has no value that can be pushed: %r", metric.name.name, error)
        return None
    return None if found is None or isnan(found) else found
