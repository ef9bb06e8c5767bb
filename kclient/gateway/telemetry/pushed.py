"""The last values of the metrics that clients push, for Prometheus: bounded, and forgotten with their clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import isinf, isnan
from typing import TYPE_CHECKING, Final

from kclient.gateway.telemetry.instances import PushingClient, life_of, told_id
from kclient.gateway.telemetry.otlp import Attributes, PointKind, PushedPoint, PushedResource

if TYPE_CHECKING:
    from kclient.memory_ledger import LimitedAccount

INFO: Final = "kclient_gateway_client_info"
"""The metric that says who a client is."""
STANDARD: Final = "org_apache_kafka_"
"""What the names of metrics begin with that are served as they are."""
OTHERS: Final = "client_"
"""What is put before all other names: none may be taken for a metric of the gateway's own."""
_WHO: Final = ("client_software_name", "client_software_version", "client_source_address")
"""Labels of what is known of a client, in the order of `PushingClient`."""
_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_LONGEST: Final = 4_096
"""Characters that the labels of a value may take, those of its client among them, with its name."""
_ONE: Final = 300
"""About how many bytes of memory a value takes, beside its name and labels."""
_AT_ONCE: Final = 64
"""Points that are taken, and values that are looked at, before others may have their turn."""
_LEFT: Final = 4
"""One part in so many of the memory is left to who pushes: else none of them would be known any more."""
_SWEEP_S: Final = 10.0
_COUNTERS: Final = frozenset({PointKind.COUNTER, PointKind.COUNTER_DELTA})
_DELTAS: Final = frozenset({PointKind.COUNTER_DELTA, PointKind.SUM_DELTA})


class _Series:
    """One value, and when it was pushed last."""

    __slots__ = ("counter", "pushed", "value")

    def __init__(self, *, counter: bool) -> None:
        self.counter = counter
        self.value = 0.0
        self.pushed = 0.0


class _Client:
    """What a client has pushed."""

    __slots__ = ("expires", "head", "held", "info", "life", "looked_at", "series")

    def __init__(self) -> None:
        self.looked_at = float("-inf")
        """When those of its values were looked for that it does not push any more."""
        self.head = ""
        """Its labels at each value."""
        self.info = ""
        """All of its labels."""
        self.life = self.expires = 0.0
        self.held = 0
        """About how many bytes of memory it takes."""
        self.series: dict[tuple[str, str], _Series] = {}
        """By the metric's name, and the labels beside those of the client."""


class PushedMetrics:
    """The values.

    Args:
        most: How many there may be: `telemetry.max.series`.
        memory: Where they count.
    """

    def __init__(self, most: Callable[[], int], memory: LimitedAccount) -> None:
        self._most = most
        self._memory = memory
        self._clients: dict[bytes, _Client] = {}
        self._sweep_at = float("-inf")
        """When those clients are looked for that have gone."""
        self.series: int = 0
        """How many values there are."""
        self.pushes: int = 0
        """How many pushes have been taken since the start."""
        self.left_out: dict[str, int] = {"series": 0, "labels": 0, "distribution": 0}
        """How many values were not, by why."""

    @property
    def clients(self) -> int:
        """How many clients have values."""
        return len(self._clients)

    def take(
        self,
        instance_id: bytes,
        client: PushingClient,
        interval_ms: int,
        points: Iterable[PushedPoint | PushedResource | None],
        now: float,
    ) -> Iterator[None]:
        """Take what a client pushes, in steps: others may have their turn wherever it yields.

        Args:
            instance_id: Its id.
            client: Who it is.
            interval_ms: How often it pushes.
            points: What it pushes, None where others may have their turn; errors of theirs are raised, and what came
                before them is kept.
            now: Seconds on the monotonic clock.
        """
        if now >= self._sweep_at:
            self.sweep(now)
        self.pushes += 1
        found = self._clients.get(instance_id) or self._new(instance_id, client)
        if found is not None:
            found.life = life_of(interval_ms)
            found.expires = now + found.life
        said: Attributes | None = None
        who, name, kind, family = "", "", PointKind.OTHER, ""
        for count, point in enumerate(points, 1):
            if point is None:
                pass
            elif found is None:
                self.left_out["series"] += isinstance(point, PushedPoint)
            elif isinstance(point, PushedResource):
                if point.attributes != said:
                    said = point.attributes
                    who = who or self._who(found, client)
                    self._tell_who(found, who, said)
            elif point.kind is PointKind.OTHER:
                self.left_out["distribution"] += 1
            elif len(point.name) > _LONGEST:
                self.left_out["labels"] += 1
            else:
                if point.name is not name or point.kind is not kind:  # once for each metric, however many points it has
                    name, kind = point.name, point.kind
                    family = _family(name, counter=kind in _COUNTERS)
                self._put(found, family, point, now)
            if point is None or count % _AT_ONCE == 0:
                yield
                if self._clients.get(instance_id) is not found:
                    return  # it took so long that the client counts as gone
        if found is None:
            return
        if now >= found.looked_at + _SWEEP_S:
            found.looked_at = now
            yield from self._drop_old(found, now)

    def _drop_old(self, found: _Client, now: float) -> Iterator[None]:
        """Forget what a client does not push any more."""
        for count, (key, series) in enumerate(list(found.series.items()), 1):
            if series.pushed + found.life < now and found.series.get(key) is series:
                self._drop(found, key)
            if count % _AT_ONCE == 0:
                yield

    def _new(self, instance_id: bytes, client: PushingClient) -> _Client | None:
        """A client that has not pushed before; None if there is no room for it."""
        found = _Client()
        found.head = _labels({"client_id": client.client_id or "", "client_instance_id": told_id(instance_id)})
        size = _size(found.head)
        if len(found.head) > _LONGEST or not self._has_room(size):
            return None
        self.series += 1  # it has a value of its own
        self._hold(found, size)
        self._clients[instance_id] = found
        return found

    def _has_room(self, size: int) -> bool:
        return self.series < self._most() and self._may_take(size)

    def _may_take(self, size: int) -> bool:
        return self._memory.has_room(size + self._memory.limit // _LEFT)

    def _who(self, found: _Client, client: PushingClient) -> str:
        """The labels that say who a client is, whatever it says of itself."""
        labels = f"{found.head},{_labels(dict(zip(_WHO, client[1:4], strict=True)))}"
        if len(labels) <= _LONGEST:
            return labels
        self.left_out["labels"] += 1
        return found.head

    def _tell_who(self, found: _Client, labels: str, resource: Attributes) -> None:
        more = ""
        if fits := _length(resource) <= _LONGEST:
            more = _labels({name: value for name, value in _told(resource).items() if name not in _WHO})
        if not fits or len(labels) + len(more) > _LONGEST:
            self.left_out["labels"] += 1
        elif more:
            labels = f"{labels},{more}"
        size = _bytes(labels) - _bytes(found.info)
        if not self._may_take(size):
            self.left_out["labels"] += 1
            return
        self._hold(found, size)
        found.info = labels

    def _put(self, found: _Client, family: str, point: PushedPoint, now: float) -> None:
        if _length(point.attributes) > _LONGEST:
            self.left_out["labels"] += 1
            return
        key = family, _labels(_told(point.attributes))
        series = found.series.get(key)
        if series is None:
            size = _size(found.head, *key)
            if len(found.head) + len(key[0]) + len(key[1]) > _LONGEST:
                self.left_out["labels"] += 1
                return
            if not self._has_room(size):
                self.left_out["series"] += 1
                return
            series = found.series[key] = _Series(counter=point.kind in _COUNTERS)
            self.series += 1
            self._hold(found, size)
        series.value = point.value + (series.value if point.kind in _DELTAS else 0.0)
        series.pushed = now

    def _drop(self, found: _Client, key: tuple[str, str]) -> None:
        del found.series[key]
        self.series -= 1
        self._hold(found, -_size(found.head, *key))

    def _hold(self, found: _Client, size: int) -> None:
        found.held += size
        self._memory.add(size)

    def sweep(self, now: float) -> None:
        """Forget the clients that were not heard of for so long that they have gone.

        Args:
            now: Seconds on the monotonic clock.
        """
        self._sweep_at = now + _SWEEP_S
        for instance_id in [each for each, found in self._clients.items() if found.expires <= now]:
            found = self._clients.pop(instance_id)
            self.series -= 1 + len(found.series)
            self._memory.add(-found.held)

    def exposition(self, now: float) -> Callable[[], bytes]:
        """What makes the values as they are now: lines in Prometheus' text format, in any thread.

        Args:
            now: Seconds on the monotonic clock.
        """
        self.sweep(now)
        return partial(_exposition, list(self._clients.values()))


def _exposition(clients: list[_Client]) -> bytes:
    families: dict[str, list[str]] = {}
    kinds: dict[str, set[bool]] = {}
    infos = [f"{INFO}{{{client.info}}} 1\n" for client in clients if client.info]
    for client in clients:
        for (family, labels), series in client.series.copy().items():  # the event loop goes on meanwhile
            lines = families.setdefault(family, [])
            kinds.setdefault(family, set()).add(series.counter)
            every = f"{client.head},{labels}" if labels else client.head
            lines.append(f"{family}{{{every}}} {_number(series.value)}\n")
    head = f"# HELP {INFO} Who a client is that pushes metrics.\n# TYPE {INFO} gauge\n"
    parts = [_encoded([head, *infos])] if infos else []
    for family, lines in families.items():
        kind = "untyped" if len(kinds[family]) > 1 else "counter" if True in kinds[family] else "gauge"
        parts.append(_encoded([f"# HELP {family} Pushed by clients.\n# TYPE {family} {kind}\n", *lines]))
        lines.clear()
    return b"".join(parts)


def _encoded(lines: list[str]) -> bytes:
    """Lines as bytes: made one by one, so that the event loop may go on in between."""
    return b"".join([line.encode("utf-8", "replace") for line in lines])


def _number(value: float) -> str:
    if isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if isinf(value) else repr(value)


def _family(name: str, *, counter: bool) -> str:
    """The name of a metric in Prometheus."""
    found = _NO_NAME.sub("_", name)
    if not found.startswith(STANDARD):
        found = OTHERS + found
    return found + "_total" if counter and not found.endswith("_total") else found


def _told(attributes: Attributes) -> dict[str, str]:
    """Attributes as labels, sorted; none is taken for one that says which client it is."""
    found: dict[str, str] = {}
    for name, value in sorted(attributes):
        label = _NO_NAME.sub("_", name)
        if not label or label[0].isdigit() or label.startswith("__"):
            label = f"a{label}"
        found[f"exported_{label}" if label in {"client_id", "client_instance_id"} else label] = value
    return found


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items())


def _length(attributes: Attributes) -> int:
    """Characters of attributes: as labels they have more."""
    return sum(len(name) + len(value) for name, value in attributes)


def _size(head: str, family: str = "", labels: str = "") -> int:
    """About how many bytes of memory a value takes: its texts, which are on the page too, as its client's are."""
    return _ONE + _bytes(family) + _bytes(labels) + (_bytes(head) if not family else _bytes(head) // 2)


def _bytes(text: str) -> int:
    """Of a text that is kept, and on the page."""
    return 2 * len(text) if text.isascii() else 8 * len(text)
