"""Metrics and health over HTTP: `GET /metrics`, in Prometheus' text format, `/healthz` and `/readyz`, as JSON.

One request is answered for each connection.

Whoever asks may be slow, or mean no good: connections are few, each ends within seconds, and the oldest makes room for
a new one. What is sent is made once a second at most, in steps and in a thread, so that clients do not wait for it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import socket
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import anyio.to_thread

from kclient.errors import ClosedError, MissingExtraError
from kclient.gateway.listening import not_bound
from kclient.gateway.metrics import GatewayMetric, MetricType
from kclient.net.address import Address
from kclient.net.fair_queue import Pace
from kclient.net.listeners import bind_all, close_all
from kclient.net.thread_switches import call_giving_way

if TYPE_CHECKING:
    from kclient.concurrency import TaskHandle
    from kclient.gateway.health import GatewayHealth, HealthReport
    from kclient.net.fair_queue import FairQueue, Flow

logger: logging.Logger = logging.getLogger("kclient.gateway")

METRICS_PATH: Final = "/metrics"
_MOST: Final = 16
"""Connections at a time."""
_SECONDS: Final = 10.0
"""So long a connection may take, from its beginning to its end."""
_FRESH_S: Final = 1.0
"""What was made so recently is sent again."""
_LONGEST: Final = 8192
"""Bytes of a request."""
_AT_ONCE: Final = 1 << 16
_OK: Final = "200 OK"
_BACKLOG: Final = 16
_AGAIN_S: Final = 1.0
"""Until connections are accepted again that the system refused."""


def check_prometheus() -> None:
    """Raise `MissingExtraError` unless metrics can be served."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise MissingExtraError("prometheus_client", "prometheus", "Serving metrics")


def exposition(metrics: list[GatewayMetric]) -> tuple[str, bytes]:
    """Metrics in Prometheus' text format, and its content type; in any thread."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.registry import Collector

    class Collected(Collector):
        def collect(self) -> Generator[CounterMetricFamily | GaugeMetricFamily, None, None]:
            for metric in metrics:
                kind = CounterMetricFamily if metric.type is MetricType.COUNTER else GaugeMetricFamily
                names = list(metric.samples[0].labels) if metric.samples else []
                family = kind(metric.name, metric.help, labels=names)
                for sample in metric.samples:
                    family.add_metric(list(sample.labels.values()), sample.value)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    return CONTENT_TYPE_LATEST, generate_latest(registry)


class Page(NamedTuple):
    """What is answered to a request."""

    status: str
    """As `200 OK`."""
    kind: str
    """Of its content."""
    body: Sequence[bytes | bytearray]
    """In parts, which all connections share: there may be megabytes."""


Pages = Mapping[str, Callable[[], Awaitable[Page]]]
"""By path, what makes the page that is there."""


class MetricsPage:
    """The metrics of one gateway as a page, made once a second at most.

    Args:
        steps: Finds them out, see `MetricRegistry.steps`.
        more: Writes further ones, in Prometheus' text format, in the turns of a flow.
        queue: Shares the event loop with clients.

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """

    def __init__(
        self,
        steps: Callable[[], Generator[None, None, list[GatewayMetric]]],
        more: Callable[[Flow], Awaitable[Sequence[bytes | bytearray]]],
        queue: FairQueue,
    ) -> None:
        check_prometheus()
        self._steps = steps
        self._more = more
        self._queue = queue
        self._making = anyio.Lock()
        self._made: Page | None = None
        self._made_at = float("-inf")

    async def page(self) -> Page:
        """The page as it is now, or was less than a second ago."""
        async with self._making:
            if self._made is None or anyio.current_time() - self._made_at >= _FRESH_S:
                self._made = None
                making = partial(exposition, await self._collected())
                kind, body = await anyio.to_thread.run_sync(call_giving_way, making)
                self._made = Page(_OK, kind, [body, *await self._more(self._queue.flow())])
                self._made_at = anyio.current_time()
            return self._made

    async def _collected(self) -> list[GatewayMetric]:
        steps, pace = self._steps(), Pace(self._queue.flow())
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return list(end.value)
            if pace.over:
                await pace.pause()


def health_pages(health: GatewayHealth) -> Pages:
    """The pages of a gateway's health: 200, or 503 where something is wrong, with the reasons as JSON."""

    async def page(report: Callable[[], Awaitable[HealthReport]]) -> Page:
        found = await report()
        return Page(_OK if found.healthy else "503 Service Unavailable", "application/json", [found.json()])

    return {"/healthz": partial(page, health.alive), "/readyz": partial(page, health.ready)}


class PageServer:
    """Serves pages over HTTP.

    Args:
        pages: What is served.
        spawn: Starts a task of the gateway; what these tasks use is closed with them.
    """

    def __init__(self, pages: Pages, spawn: Callable[..., TaskHandle]) -> None:
        self._pages = pages
        self._spawn = spawn
        self._listening: list[socket.socket] = []
        self._open: dict[TaskHandle, socket.socket] = {}
        """Connections, the oldest first."""

    async def listen(self, address: Address) -> Address:
        """Serve at one more address, whose port 0 stands for any free one; returns where.

        Raises:
            ConfigError: It is not a host's.
            OSError: It cannot be bound; the text says why.
        """
        try:
            found = await anyio.getaddrinfo(
                address.host or None, address.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP,
                flags=socket.AI_PASSIVE,
            )  # fmt: skip
            sockets = bind_all(list(dict.fromkeys((item[0], item[4]) for item in found)), _BACKLOG)
        except (OSError, UnicodeError) as error:
            raise not_bound(address, error) from error
        for sock in sockets:
            task = self._spawn(self._accept, sock, name=f"metrics and health on {address}")
            task.on_done(lambda _, sock=sock: sock.close())  # type: ignore[misc]
        self._listening += sockets
        return Address(address.host, sockets[0].getsockname()[1])

    def abandon(self) -> None:
        """In a forked child: close the descriptors that it inherited."""
        close_all([*self._listening, *self._open.values()])

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            await anyio.wait_readable(listening)
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, ConnectionError):
                continue  # the client has gone already
            except OSError as error:
                logger.error("no metrics and no health are served for a moment: %s", error)
                await anyio.sleep(_AGAIN_S)
                continue
            sock.setblocking(False)
            if len(self._open) >= _MOST:
                self._end(next(iter(self._open)))
            self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        try:
            task = self._spawn(self._serve, sock, name="metrics")
        except BaseException:
            sock.close()
            raise
        self._open[task] = sock
        task.on_done(self._ended)

    def _end(self, task: TaskHandle) -> None:
        """Make room: it counts no more."""
        sock = self._open.pop(task)
        task.cancel()
        task.on_done(lambda _: sock.close())

    def _ended(self, task: TaskHandle) -> None:
        sock = self._open.pop(task, None)
        if sock is not None:
            sock.close()

    async def _serve(self, sock: socket.socket) -> None:
        try:
            with anyio.move_on_after(_SECONDS):
                head = await _received(sock)
                if head is not None:
                    await _sent(sock, await self._answer(head))
        except OSError as error:
            logger.debug("a connection that asked for a page broke: %s", error)
        except ClosedError as error:
            logger.debug("metrics are told no more: %s", error)
        except Exception:
            logger.exception("metrics cannot be told, or health")

    async def _answer(self, head: bytes) -> Sequence[bytes | bytearray]:
        """The response to a request; bodies that come with it are not read."""
        method, target, version = (*head.split(b"\r\n", 1)[0].split(b" "), b"", b"", b"")[:3]
        if not version.startswith(b"HTTP/1."):
            return _response("400 Bad Request", body=[b"This is HTTP/1.1, and that was no request.\n"])
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "Allow: GET, HEAD\r\n", [b"Ask with GET.\n"])
        page = self._pages.get(target.split(b"?", 1)[0].decode("latin-1"))
        if page is None:
            return _response("404 Not Found", body=[f"There is {', '.join(self._pages)}.\n".encode()])
        found = await page()
        return _response(found.status, kind=found.kind, body=found.body, head_only=method == b"HEAD")


async def _received(sock: socket.socket) -> bytes | None:
    """The head of a request, as far as it may be; None if the client has gone."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _LONGEST:
        await anyio.wait_readable(sock)
        try:
            some = sock.recv(_LONGEST)
        except BlockingIOError:
            continue
        if not some:
            return None
        head += some
    return head if b"\r\n\r\n" in head else b""


async def _sent(sock: socket.socket, parts: Sequence[bytes | bytearray]) -> None:
    for part in parts:
        left = memoryview(part)
        while left:
            with contextlib.suppress(BlockingIOError):
                left = left[sock.send(left[:_AT_ONCE]) :]
            await anyio.wait_writable(sock)
    sock.shutdown(socket.SHUT_WR)


def _response(
    status: str,
    more: str = "",
    body: Sequence[bytes | bytearray] = (),
    *,
    kind: str = "text/plain; charset=utf-8",
    head_only: bool = False,
) -> Sequence[bytes | bytearray]:
    head = (
        f"HTTP/1.1 {status}\r\n{more}Content-Type: {kind}\r\nContent-Length: {sum(map(len, body))}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return [head.encode(), *(() if head_only else body)]
