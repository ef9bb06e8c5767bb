"""One opening of a simulated installation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from kclient.arguments import shown
from kclient.concurrency import LoopHandle
from kclient.errors import ConfigError, IllegalStateError
from kclient.htp.errors import StorageError, StoreClosedError
from kclient.htp.port import DURABILITY_SYNCED, DURABILITY_WRITTEN
from kclient.htp.testing.broker import SimulatedBroker
from kclient.htp.testing.installation import Installation
from kclient.htp.testing.manager import SimulatedManager
from kclient.htp.testing.options import SimulatedOptions, parse_address

_installations: Final[dict[str, tuple[Installation, LoopHandle]]] = {}


def open_simulated(
    rest: str,
    *,
    durability: str = DURABILITY_SYNCED,
    brokers: int | None = None,
    options: SimulatedOptions | None = None,
    clock: Callable[[], float] | None = None,
) -> SimulatedStore:
    """The installation of a name; made when it is entered for the first time.

    Args:
        rest: `NAME`, or with parameters: `NAME?brokers=3&seed=7`, see `SimulatedOptions`.
        durability: Makes no difference; checked all the same.
        brokers: How many there are to be, beside the other parameters.
        options: In the place of parameters.
        clock: The monotonic clock by which this client reckons its leases, in seconds; the system's if None.

    Raises:
        ConfigError: A parameter is not known or makes no sense, or there are both parameters and `options`.
    """
    if durability not in (DURABILITY_SYNCED, DURABILITY_WRITTEN):
        raise ConfigError(f"durability is {DURABILITY_SYNCED!r} or {DURABILITY_WRITTEN!r}, not {shown(durability)}")
    name, parsed = parse_address(rest)
    if parsed is not None and options is not None:
        raise ConfigError("an installation is described by the parameters of its address or by options, not by both")
    described = options or parsed
    if brokers is not None:
        described = replace(described or SimulatedOptions(), brokers=brokers)
    return SimulatedStore(name, described, clock)


def reset(name: str) -> None:
    """Forget an installation; whoever has it open keeps what is there, and shares it with nobody who comes later."""
    _installations.pop(name, None)


class SimulatedStore:
    """Implements `kclient.htp.port.Store`; `async with` opens it.

    Args:
        name: Of the installation.
        options: How it behaves; as whoever opened it first has said if None.
        clock: The monotonic clock by which leases are reckoned.
    """

    def __init__(self, name: str, options: SimulatedOptions | None, clock: Callable[[], float] | None) -> None:
        self.name: str = name
        self._options = options
        self._clock = clock
        self._installation: Installation | None = None
        self._manager: SimulatedManager | None = None
        self._broker: SimulatedBroker | None = None

    def _closed(self) -> StoreClosedError:
        return StoreClosedError(f"simulated:{self.name} is not open")

    @property
    def installation(self) -> Installation:
        """What all who use the name share."""
        if self._installation is None:
            raise self._closed()
        return self._installation

    @property
    def manager(self) -> SimulatedManager:
        """The management part."""
        if self._manager is None:
            raise self._closed()
        return self._manager

    @property
    def broker(self) -> SimulatedBroker:
        """The messages."""
        if self._broker is None:
            raise self._closed()
        return self._broker

    async def __aenter__(self) -> Self:
        """Open it.

        Raises:
            ConfigError: It was made with other options.
            IllegalStateError: It belongs to another event loop.
        """
        here = LoopHandle()
        found, loop = _installations.get(self.name, (None, here))
        if found is None:
            found = Installation(self.name, self._options or SimulatedOptions())
            _installations[self.name] = found, here
        elif not loop.is_current and not loop.ended:
            raise IllegalStateError(f"simulated:{self.name} is in use in another event loop; use another name there")
        elif self._options is not None and self._options != found.options:
            raise ConfigError(f"simulated:{self.name} was made with {found.options}, not with {self._options}")
        elif loop.ended:
            found.move_here()
            _installations[self.name] = found, here
        self._installation = found
        self._manager = SimulatedManager(found, self._clock)
        self._broker = SimulatedBroker(found)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close this opening."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close this opening; what is stored stays, and so does what is on its way."""
        if self._broker is not None:
            self._broker.shut()
        if self._manager is not None:
            self._manager.shut()
        self._broker = self._manager = self._installation = None

    def on_failure(self, callback: Callable[[StorageError], object]) -> Callable[[], None]:
        """It never fails for good: `callback` is not called."""
        return lambda: None
