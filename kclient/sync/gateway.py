"""The gateway for blocking code: it runs in the portal's thread."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from kclient.gateway import Gateway as AsyncGateway
from kclient.gateway import GatewayMetric, Reloaded
from kclient.gateway.gateway import DRAIN_S
from kclient.htp.port import Store
from kclient.net.address import Address
from kclient.sync.portal import Portal, get_portal
from kclient.unclosed import finalizer


class Gateway:
    """A Kafka-compatible server over HTP: `with Gateway() as gateway: ...`; see `kclient.Gateway`.

    The arguments are those of `kclient.Gateway`.
    """

    def __init__(
        self,
        htp: str | Store = "embedded:./data",
        listen: str | None = "127.0.0.1:9092",
        advertise: str | None = None,
        *,
        durability: str = "synced",
        mapping: str = "domain",
        brokers: int | None = None,
        alone: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._portal: Portal = get_portal()

        async def make() -> AsyncGateway:
            return AsyncGateway(
                htp,
                listen,
                advertise,
                durability=durability,
                mapping=mapping,
                brokers=brokers,
                alone=alone,
                config=config,
            )

        self._gateway = self._portal.call(make)

    @property
    def bootstrap(self) -> str:
        """`host:port` for `bootstrap.servers`."""
        return self._gateway.bootstrap

    @property
    def address(self) -> str:
        """`host:port` that the TCP listener is bound to; clients are told `bootstrap`."""
        return self._gateway.address

    @property
    def advertised(self) -> dict[str, str]:
        """`host:port` that the clients of each listener are told, by the listener's name."""
        return self._gateway.advertised

    @property
    def failure(self) -> BaseException | None:
        """What made the gateway stop serving, if something did."""
        return self._gateway.failure

    def start(self) -> None:
        """Open the store, recover, and listen."""
        self._portal.call(self._gateway.start)

    def listen(self, address: str, *, advertise: Address | str | None = None) -> Address:
        """Accept connections on one more address; returns where it listens."""
        return self._portal.call(self._gateway.listen, address, advertise=advertise)

    def metrics(self) -> list[GatewayMetric]:
        """What the gateway tells of itself, as it is now; see `kclient.Gateway.metrics`."""

        async def collect() -> list[GatewayMetric]:
            return self._gateway.metrics()

        return self._portal.call(collect)

    def serve_metrics(self, address: str) -> Address:
        """Serve the metrics over HTTP, in Prometheus' text format: `GET /metrics`. Returns where."""
        return self._portal.call(self._gateway.serve_metrics, address)

    def expect_metrics(self) -> None:
        """Tell clients from the start that they may push their metrics; see `kclient.Gateway.expect_metrics`."""
        self._gateway.expect_metrics()

    def serve_health(self, address: str) -> Address:
        """Answer over HTTP whether the gateway is well: `GET /healthz` and `/readyz`. Returns where."""
        return self._portal.call(self._gateway.serve_health, address)

    def reload(self, config: Mapping[str, Any] | None = None) -> Reloaded:
        """Take over settings and certificates that have changed, without a restart; see `kclient.Gateway.reload`."""
        return self._portal.call(self._gateway.reload, config)

    def apply_retention(self) -> int:
        """Apply retention by time and size now; returns how many partitions lost records."""
        return self._portal.call(self._gateway.apply_retention)

    def wait(self) -> None:
        """Until the gateway is closed. Raises what made it fail, if it fails."""
        self._portal.call(self._gateway.wait)

    def close(self, timeout: float = DRAIN_S) -> None:
        """Stop accepting, answer what has begun, checkpoint and close; may be called again.

        Where it is interrupted, as by Ctrl-C, it cuts off what is left and raises that when it is closed.
        """
        try:
            self._portal.call(self._gateway.close, timeout)
        except KeyboardInterrupt:
            self._portal.call(self._gateway.close, 0.0)
            raise

    def __enter__(self) -> Self:
        try:
            self.start()
        except KeyboardInterrupt:  # it may have started all the same
            self.close(0.0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(DRAIN_S if error is None else 0.0)

    def __repr__(self) -> str:
        return f"<sync.{repr(self._gateway)[1:]}" if hasattr(self, "_gateway") else "<sync.Gateway, not made>"

    @finalizer
    def __del__(self) -> None:
        if hasattr(self, "_gateway"):
            self._gateway._forgotten(self, "`with`, or `gateway.close()`")
