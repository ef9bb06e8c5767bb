"""Whether a gateway is alive, and whether clients should be sent to it: what `/healthz` and `/readyz` answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from kclient.errors import KafkaError
from kclient.gateway.rows.keys import CLUSTER_ID

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.ownership import HeldLease
    from kclient.htp.port import DiskSpace, Manager

_PATIENCE_S: Final = 2.0
"""Seconds that the store has to answer."""
_FRESH_S: Final = 1.0
"""For so long an answer of the store is taken for the present one."""


class HealthReport(NamedTuple):
    """What was found out."""

    checks: Mapping[str, str | None]
    """By what was looked at: None where all is well, else the reason why not."""

    @property
    def healthy(self) -> bool:
        """Whether all is well."""
        return not any(self.checks.values())

    def json(self) -> bytes:
        """The report as it is served: `status`, and each check with `ok` or its reason."""
        checks = {name: reason or "ok" for name, reason in self.checks.items()}
        return (json.dumps({"status": "ok" if self.healthy else "unavailable", "checks": checks}) + "\n").encode()


class GatewayHealth:
    """Looks at a gateway that has been started.

    Args:
        failure: Tells what has made it stop serving, if something has.
        closing: Tells whether it is being closed.
        listening: Tells at how many addresses it accepts clients.
        lease: Under which it serves the store.
        manager: The store's.
        space: Asks the store about its disk; None where it has none.
        clock: By which the lease ends.
    """

    def __init__(
        self,
        *,
        failure: Callable[[], BaseException | None],
        closing: Callable[[], bool],
        listening: Callable[[], bool],
        lease: HeldLease,
        manager: Manager,
        space: Callable[[], DiskSpace] | None,
        clock: Clock,
    ) -> None:
        self._failure = failure
        self._closing = closing
        self._listening = listening
        self._lease = lease
        self._manager = manager
        self._space = space
        self._clock = clock
        self._asking = anyio.Lock()
        self._asked_at = float("-inf")
        self._store: str | None = None

    async def alive(self) -> HealthReport:
        """Whether it serves at all: a restart is what helps where it does not. It waits for nothing."""
        return HealthReport({"gateway": self._why_failed()})

    async def ready(self) -> HealthReport:
        """Whether clients are served at this moment: producers too, by what is known of the disk."""
        checks = {
            "gateway": self._why_failed(),
            "draining": "the gateway is being closed" if self._closing() else None,
            "listening": None if self._listening() else "no client can connect: the gateway listens nowhere",
            "lease": self._why_no_lease(),
            "disk": self._why_no_space(),
        }
        if not self._closing():
            checks["store"] = await self._why_no_store()
        return HealthReport(checks)

    def _why_failed(self) -> str | None:
        failure = self._failure()
        return None if failure is None else f"the gateway has failed: {failure}"

    def _why_no_lease(self) -> str | None:
        if self._lease.current.expires > self._clock.now():
            return None
        return "the lease has run out under which the gateway serves the store"

    def _why_no_space(self) -> str | None:
        space = None if self._space is None else self._space()
        if space is None or not space.refused:
            return None
        return f"producers are refused: {space.free} bytes are left, less than {space.least} (log.dir.min.free.bytes)"

    async def _why_no_store(self) -> str | None:
        async with self._asking:
            if self._clock.now() - self._asked_at >= _FRESH_S:
                self._store = await self._ask_store()
                self._asked_at = self._clock.now()
            return self._store

    async def _ask_store(self) -> str | None:
        try:
            with anyio.fail_after(_PATIENCE_S):
                await self._manager.get([CLUSTER_ID])
        except TimeoutError:
            return f"the store has not answered for {_PATIENCE_S:g} s"
        except KafkaError as error:
            return f"the store cannot be read: {error}"
        return None
