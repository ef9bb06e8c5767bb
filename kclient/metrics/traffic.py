"""Requests, responses and connections of one client: counted by the connections, told by broker and in all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kclient.metrics.metric import Metric
    from kclient.metrics.registry import MetricGroup, MetricsRegistry
    from kclient.metrics.windows import MetricTally, MetricWindows, Percentiles

__all__ = ["BrokerTraffic", "Traffic"]


class BrokerTraffic:
    """What passes between the client and one address; written by the loop of its connections."""

    __slots__ = ("_windows", "latency", "requests", "responses", "traffic")

    def __init__(self, windows: MetricWindows, traffic: Traffic) -> None:
        self._windows = windows
        self.traffic: Traffic = traffic
        self.requests: MetricTally = windows.tally()
        """Bytes of each request."""
        self.responses: MetricTally = windows.tally()
        """Bytes of each response."""
        self.latency: Percentiles = windows.percentiles()
        """Milliseconds from the call that sends a request to its response."""

    def sent(self, size: int) -> None:
        """A request leaves."""
        windows = self._windows
        if windows.clock() >= windows.due:
            windows.look()
        self.requests.add(size)

    def received(self, size: int, seconds: float) -> None:
        """A response has come, so many seconds after its request was made."""
        windows = self._windows
        if windows.clock() >= windows.due:
            windows.look()
        self.responses.add(size)
        self.latency.add(seconds * 1000)


class Traffic:
    """The traffic of one client.

    Args:
        windows: What metrics are computed over.
    """

    def __init__(self, windows: MetricWindows) -> None:
        self._windows = windows
        self._brokers: dict[Any, BrokerTraffic] = {}
        self.opened: MetricTally = windows.tally()
        """Connections that were made."""
        self.closed: MetricTally = windows.tally()
        """Connections that have ended."""
        self.authenticated: MetricTally = windows.tally()
        self.refused: MetricTally = windows.tally()
        """Authentications that failed."""
        self.renewed: MetricTally = windows.tally()
        """Milliseconds of each authentication that was repeated."""
        self.not_renewed: MetricTally = windows.tally()
        """Authentications that failed when they were repeated."""
        self.lasting: MetricTally = windows.tally()
        """Authentications that never have to be repeated."""

    def connected(self, *, lasting: bool) -> None:
        """A connection was made, and authenticated where the broker asks for that.

        Args:
            lasting: Whether that never has to be repeated.
        """
        self.opened.add()
        self.authenticated.add()
        if lasting:
            self.lasting.add()

    def reauthenticated(self, seconds: float, error: BaseException | None) -> None:
        """A connection has authenticated again within so many seconds, or failed to."""
        if error is None:
            self.renewed.add(seconds * 1000)
        else:
            self.not_renewed.add()

    def broker(self, address: Any) -> BrokerTraffic:
        """What passes to and from an address."""
        found = self._brokers.get(address)
        if found is None:
            found = self._brokers[address] = BrokerTraffic(self._windows, self)
        return found

    def known(self, address: Any) -> BrokerTraffic | None:
        """The same, if there has been any."""
        return self._brokers.get(address)

    def _all(self) -> list[BrokerTraffic]:
        return list(self._brokers.values())

    def requests(self) -> Sequence[MetricTally]:
        """Of every broker."""
        return [broker.requests for broker in self._all()]

    def responses(self) -> Sequence[MetricTally]:
        """Of every broker."""
        return [broker.responses for broker in self._all()]

    def latency(self) -> Sequence[Percentiles]:
        """Of every broker."""
        return [broker.latency for broker in self._all()]

    def define(
        self, registry: MetricsRegistry, client: str, nodes: Callable[[], Mapping[int, Any]], *, latency: bool = False
    ) -> None:
        """Have the client's metrics tell of it.

        Args:
            registry: The client's metrics.
            client: The beginning of the groups' names: `producer`, `consumer` or `admin-client`.
            nodes: The brokers' addresses by id, as far as they are known.
            latency: Whether there are latencies over all brokers, too, as the producer has them.
        """
        registry.define(lambda: self._of_client(registry.group(f"{client}-metrics"), latency=latency))

        def keys() -> Iterable[tuple[int, Any]]:
            return [(node, address) for node, address in nodes().items() if address in self._brokers]

        def make(key: tuple[int, Any]) -> Iterable[Metric]:
            group = registry.group(f"{client}-node-metrics", node_id=f"node-{key[0]}")
            return _of_broker(group, self._brokers[key[1]], detailed=registry.debug)

        registry.family(keys, make)

    def _of_client(self, group: MetricGroup, *, latency: bool) -> Iterator[Metric]:
        yield group.gauge("connection-count", "The number of open connections", lambda: float(self.connections))
        yield from group.meter("connection-creation", "connections made", lambda: [self.opened])
        yield from group.meter("connection-close", "connections ended", lambda: [self.closed])
        yield from _requests(group, self.requests, self.responses)
        both = "requests sent and responses received"
        yield from group.meter("network-io", both, lambda: [*self.requests(), *self.responses()], by_count=True)
        yield from group.meter("successful-authentication", "successful authentications", lambda: [self.authenticated])
        yield from group.meter("failed-authentication", "failed authentications", lambda: [self.refused])
        yield group.total(
            "successful-authentication-no-reauth-total",
            "The total number of successful authentications that never have to be repeated",
            lambda: [self.lasting],
        )
        repeated = "repeated authentications (KIP-368)"
        yield from group.meter(
            "successful-reauthentication", f"successful {repeated}", lambda: [self.renewed], by_count=True
        )
        yield from group.meter("failed-reauthentication", f"failed {repeated}", lambda: [self.not_renewed])
        yield from group.extent("reauthentication-latency", f"ms that {repeated} took", lambda: [self.renewed])
        if latency:
            yield from _latency(group, self.latency)
            yield from group.percentiles("request-latency", _LATENCY, self.latency)

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return self.opened.count - self.closed.count


_LATENCY = "ms from a request to its response"


def _requests(group: MetricGroup, requests: _Tallies, responses: _Tallies) -> Iterator[Metric]:
    yield from group.meter("request", "requests sent", requests, by_count=True)
    yield from group.meter("response", "responses received", responses, by_count=True)
    yield from group.extent("request-size", "bytes of a request", requests)
    yield from group.meter("outgoing-byte", "bytes sent", requests)
    yield from group.meter("incoming-byte", "bytes received", responses)


def _latency(group: MetricGroup, latency: Callable[[], Sequence[Percentiles]]) -> Iterator[Metric]:
    yield from group.extent("request-latency", _LATENCY, latency)


def _of_broker(group: MetricGroup, broker: BrokerTraffic, *, detailed: bool) -> Iterator[Metric]:
    yield from _requests(group, lambda: [broker.requests], lambda: [broker.responses])
    yield from _latency(group, lambda: [broker.latency])
    if detailed:
        yield from group.percentiles("request-latency", _LATENCY, lambda: [broker.latency])


if TYPE_CHECKING:
    _Tallies = Callable[[], Sequence[MetricTally]]
