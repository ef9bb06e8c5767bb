"""What a request carries with it: the connection that it came on, who its client is, and by which listener it came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kclient.net.discarding import in_slices

if TYPE_CHECKING:
    from kclient.gateway.quotas.charges import Charge
    from kclient.gateway.quotas.clients import Limits
    from kclient.net.fair_queue import Flow
    from kclient.net.memory_budget import Share
    from kclient.net.reply_order import ReplySlot


IN_PROCESS: Final = "IN_PROCESS"
"""The name of the listener of clients that name the store instead of a host."""
LOCAL_SCHEMES: Final = frozenset({"memory", "embedded"})
"""Of the addresses by which they do."""


@dataclass(slots=True, frozen=True)
class Advertised:
    """The address under which clients of one listener find this gateway."""

    host: str
    port: int
    listener: str = "PLAINTEXT"
    """The listener's name, as in `listeners`."""
    security_protocol: str = "PLAINTEXT"
    """How clients connect: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""


@dataclass(slots=True, frozen=True)
class Principal:
    """Who a client is, as far as it has said."""

    name: str = "ANONYMOUS"
    type: str = "User"

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal()
"""A client that has not authenticated itself: on plain listeners all."""


UNKNOWN: Final = "unknown"
"""The name and version of the library of a client that does not tell them."""


class KnownRights:
    """What an authorizer remembers of a principal at a host.

    Args:
        epoch: Until the authorizer has another one.
        principal: Who.
        whos: The principals and hosts of entries that are about it.
        is_super: Whether it may do everything.
    """

    __slots__ = ("any_of", "decisions", "epoch", "is_super", "principal", "whos")

    def __init__(
        self, epoch: object, principal: Principal, whos: tuple[tuple[str, str], ...], *, is_super: bool
    ) -> None:
        self.epoch: object = epoch
        self.principal: Principal = principal
        self.whos: tuple[tuple[str, str], ...] = whos
        self.is_super: bool = is_super
        self.decisions: dict[int, dict[str, bool]] = {}
        """By type of resource and operation, then by name."""
        self.any_of: dict[int, bool] = {}
        """By type of resource and operation."""


@dataclass(slots=True, eq=False)
class ConnectionContext:
    """One client connection: where it came from, the listener's advertised address, its turns and its memory."""

    peer: str
    """The peer's address as text, for logs: `127.0.0.1:40312`, or `memory:NAME`."""
    client_host: str
    """The peer's host as Kafka shows it in group descriptions: `/127.0.0.1`."""
    advertised: Advertised
    flow: Flow
    """Its turns on the event loop."""
    share: Share
    """What it holds of the memory for clients."""
    principal: Principal = ANONYMOUS
    by_token: bool = False
    """Whether it has said who it is with a delegation token."""
    rights: KnownRights | None = None
    """What the authorizer remembers of the principal; its own business."""
    software_name: str = UNKNOWN
    """What the client's library calls itself (KIP-511)."""
    software_version: str = UNKNOWN
    limits: Limits | None = None
    """The quotas that were found for its client last; whose business they are looks whether they still hold."""
    api_key: int = -1
    """Of the request in hand: the one that was begun last, or that goes on."""
    end_sessions: Callable[[], object] | None = None
    """Ends the client's fetch sessions, if it has any."""
    gone: bool = False
    """Whether the client has gone: nobody waits for what is not answered yet."""
    _when_gone: dict[Callable[[], object], None] = field(default_factory=dict)

    def when_gone(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the client has gone, at once if it has; it must not raise.

        `unless_gone` takes it back.
        """
        if self.gone:
            callback()
        else:
            self._when_gone[callback] = None

    def unless_gone(self, callback: Callable[[], object]) -> None:
        """Do not call `callback` any more."""
        self._when_gone.pop(callback, None)

    def discard(self, steps: Iterator[None]) -> None:
        """Give up very many objects in steps, in the client's turns; each step gives up some."""
        self.flow.add(in_slices(steps, self.flow.clock))

    def end(self) -> None:
        """The client has gone."""
        self.gone = True
        callbacks, self._when_gone = self._when_gone, {}
        for callback in callbacks:
            callback()


@dataclass(slots=True)
class RequestContext:
    """One request's header, and the connection it came on."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    connection: ConnectionContext
    place: ReplySlot
    """Its place in the order of the connection's replies."""
    charge: Charge | None = None
    """What it is charged for; None where no quota holds for its client."""
