"""Metrics: figures that a gateway tells of itself, computed when they are read.

A registry knows how each is found out, and nothing more: whoever serves them says how they look.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from kclient.errors import IllegalStateError

__all__ = ["GatewayMetric", "MetricRegistry", "MetricType", "Read", "Sample", "Value", "Values"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_AT_ONCE: Final = 64
"""Samples that are found out before others may have their turn."""

Value = int | float
Values = Iterable[tuple[Sequence[str], Value]]
Read = Callable[[], "Value | Values | None"]
"""Finds out one value; or values, each with those of the labels; or None where it is not known."""


class MetricType(Enum):
    """How the values of a metric change."""

    GAUGE = "gauge"
    """Up and down."""
    COUNTER = "counter"
    """Up, from 0 when the gateway starts."""


class Sample(NamedTuple):
    """One value of a metric."""

    labels: Mapping[str, str]
    """What it is a value of; empty where there is only one."""
    value: float


class GatewayMetric(NamedTuple):
    """A metric with its values."""

    name: str
    """As in Prometheus: the unit comes last, and `_total` behind that of a counter."""
    type: MetricType
    unit: str
    """`bytes`; empty for a plain number."""
    help: str
    """What it is, in a sentence."""
    samples: tuple[Sample, ...]
    """None where it is not known."""


class _Defined(NamedTuple):
    name: str
    type: MetricType
    unit: str
    help: str
    labels: tuple[str, ...]
    read: Read


class MetricRegistry:
    """The metrics of one gateway."""

    def __init__(self) -> None:
        self._defined: dict[str, _Defined] = {}

    def gauge(self, name: str, text: str, read: Read, *, unit: str = "", labels: Sequence[str] = ()) -> None:
        """A value that goes up and down.

        Args:
            name: Of the metric; ends with the unit, if it has one.
            text: What it is.
            read: Finds it out, quickly and without waiting.
            unit: Of the values.
            labels: Names of what tells several values apart; `read` gives their values with each.

        Raises:
            ValueError: The name is none, or does not end with the unit.
            IllegalStateError: There is one of that name.
        """
        self._define(_Defined(name, MetricType.GAUGE, unit, text, tuple(labels), read))

    def counter(self, name: str, text: str, read: Read, *, labels: Sequence[str] = ()) -> None:
        """A number that only grows, whose name ends with `_total`; otherwise as `gauge`."""
        if not name.endswith("_total"):
            raise ValueError(f"the name of a counter ends with _total, and {name!r} does not")
        self._define(_Defined(name, MetricType.COUNTER, "", text, tuple(labels), read))

    def _define(self, made: _Defined) -> None:
        if not _NAME.fullmatch(made.name) or not made.name.endswith(made.unit):
            raise ValueError(f"{made.name!r} is not the name of a metric{made.unit and f' in {made.unit}'}")
        if made.name in self._defined:
            raise IllegalStateError(f"there is a metric {made.name} already")
        self._defined[made.name] = made

    def collect(self) -> list[GatewayMetric]:
        """All metrics as they are now."""
        steps = self.steps()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return list(end.value)

    def steps(self) -> Generator[None, None, list[GatewayMetric]]:
        """The same, in steps: others may have their turn wherever it yields."""
        found = []
        for each in list(self._defined.values()):
            samples: list[Sample] = []
            values = each.read()
            if isinstance(values, int | float):
                samples.append(Sample({}, values))
            elif values is not None:
                for told, value in values:
                    samples.append(Sample(dict(zip(each.labels, told, strict=True)), value))
                    if len(samples) % _AT_ONCE == 0:
                        yield
            found.append(GatewayMetric(each.name, each.type, each.unit, each.help, tuple(samples)))
            yield
        return found
