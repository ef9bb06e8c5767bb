"""What becomes of brokers, told as it happens to those who look on, such as people at the command line.

Clients cope with it by themselves, and raise what they cannot cope with. Who listens hears of every client of the
process, in the thread of its loop.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SILENT_S: Final = 5.0
"""Seconds after which it is told that an answer is overdue."""
LOOK_S: Final = 0.5
"""Seconds between looks at what brokers owe, while somebody listens."""


class BrokerEvent(Enum):
    """What became of a broker."""

    REACHED = auto()
    """The first connection to it is open."""
    UNREACHABLE = auto()
    """Connecting failed; told once until it succeeds. Of a bootstrap server: no other one answered either."""
    LOST = auto()
    """The connection ended, and this side did not want that."""
    SILENT = auto()
    """It owes an answer for too long."""
    BACK = auto()
    """It is reached again, or answers again."""
    LEFT = auto()
    """The cluster does not name it any more: it is waited for no more."""


@dataclass(frozen=True, slots=True)
class BrokerNews:
    """What became of the broker at an address; `error` is why, where there is one.

    `bootstrap` says that the address is only known as that of a bootstrap server, whose others do as well.
    """

    address: str
    event: BrokerEvent
    error: BaseException | None = None
    bootstrap: bool = False


_listeners: list[Callable[[BrokerNews], None]] = []


@contextmanager
def listening(listener: Callable[[BrokerNews], None]) -> Iterator[None]:
    """The listener is told of brokers for the length of the block; of silence by clients that start in it."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def anybody_listens() -> bool:
    """Whether looking out for silence is worth the trouble."""
    return bool(_listeners)


def tell(address: object, event: BrokerEvent, error: BaseException | None = None, *, bootstrap: bool = False) -> None:
    """Tell all who listen."""
    for listener in tuple(_listeners):
        listener(BrokerNews(str(address), event, error, bootstrap))


class _Owing(Protocol):
    @property
    def waiting(self) -> float: ...
    @property
    def connected(self) -> bool: ...


L = TypeVar("L", bound=_Owing)


class Silence:
    """Knows which links have waited too long for an answer: decisions only."""

    def __init__(self) -> None:
        self._silent = set[object]()

    def look(self, links: Iterable[tuple[L, float]]) -> list[tuple[L, BrokerEvent]]:
        """What is news of these links, each given with the seconds that its broker may take by right."""
        news: list[tuple[L, BrokerEvent]] = []
        silent = set[object]()
        for link, patience in links:
            if link.waiting - patience >= SILENT_S:
                silent.add(link)
                if link not in self._silent:
                    news.append((link, BrokerEvent.SILENT))
            elif link in self._silent:
                if link.connected:
                    news.append((link, BrokerEvent.BACK))
                else:
                    silent.add(link)  # another attempt to connect is no answer
        self._silent = silent
        return news
