"""Who the client of a connection is: it authenticates first, and again when its session ends (KIP-368)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kclient.concurrency import loop_clock
from kclient.net.negotiation import Ask, authenticate
from kclient.net.sasl.authentication import ClientAuthentication, session_end

if TYPE_CHECKING:
    from kclient.concurrency import Supervisor, TaskHandle
    from kclient.net.address import Address
    from kclient.net.sasl.login import Login
    from kclient.net.send_queue import SendQueue

__all__ = ["ClientSession"]

logger: logging.Logger = logging.getLogger("kclient.net.connection")


class ClientSession:
    """The SASL session of one connection.

    Args:
        ask: Sends a request before those that wait for their turn, and waits for its response.
        address: The broker.
        queue: The requests that wait while the connection authenticates again.
        supervisor: Runs the task that does.
        over: Called when that task has ended, with why it failed, if it did: ends that `queue` is held.
    """

    def __init__(
        self,
        ask: Ask,
        address: Address,
        queue: SendQueue,
        supervisor: Supervisor,
        *,
        over: Callable[[BaseException | None], object],
    ) -> None:
        self._ask = ask
        self._address = address
        self._queue = queue
        self._supervisor = supervisor
        self._over = over
        self._now = loop_clock()
        self._login: Login | None = None
        self._versions: Mapping[int, tuple[int, int]] = {}
        self._renewal_began = 0.0
        self._renewal: TaskHandle | None = None  # the task that authenticates again, while it waits for a token

    @property
    def authenticated(self) -> bool:
        """Whether the client has authenticated."""
        return self._login is not None

    @property
    def renewal_seconds(self) -> float:
        """How long ago the client began to authenticate again."""
        return self._now() - self._renewal_began

    @property
    def lasts(self) -> bool:
        """Whether the broker never asks to authenticate again."""
        return self._queue.session_end == float("inf")

    async def begin(self, login: Login, versions: Mapping[int, tuple[int, int]]) -> None:
        """Authenticate, before any other request.

        Args:
            login: What to authenticate with.
            versions: The broker's version ranges by api key.

        Raises:
            AuthenticationError: If the broker refused, besides what `ask` raises.
        """
        mechanism = await login.begin()
        again = self._login is not None
        exchange = ClientAuthentication(mechanism, self._address, versions, again=again)
        self._renewal = None  # from here on it ends with the connection
        await authenticate(self._ask, exchange, login)
        self._login, self._versions = login, versions
        self._queue.session_end = session_end(exchange.session_lifetime_ms, self._now())
        logger.debug("%s: authenticated%s by %s", self._address, " again" if again else "", login.mechanism)

    def renew(self) -> None:
        """The session is about to end: authenticate again, behind what is on its way and before what follows."""
        login = self._login
        assert login is not None
        self._renewal_began = self._now()
        self._renewal = self._supervisor.spawn(self._renew, login, name=f"authenticate again {self._address}")
        self._queue.held = True

    def end(self) -> None:
        """The connection has ended: nothing waits for a token any more."""
        if self._renewal is not None:
            self._renewal.cancel()

    async def _renew(self, login: Login) -> None:
        error: BaseException | None = ConnectionAbortedError("the task that authenticates again was cancelled")
        try:
            await self.begin(login, self._versions)
            error = None
        except Exception as failure:  # noqa: BLE001  (it fails those who wait)
            error = failure
        finally:
            self._over(error)
