"""A store that at times does not tell what became of a send: the gateway has to find out, and the test knows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from types import TracebackType
from typing import Any, Self

import anyio

from kclient.concurrency import LoopHandle
from kclient.errors import KafkaError
from kclient.htp.errors import OutcomeUnknownError, StorageError
from kclient.htp.port import Place, SyncedCallback
from kclient.types import Buffer


class Fate(Enum):
    """What becomes of a send."""

    KNOWN = "the store tells"
    STORED = "it is stored, and the answer is lost"
    LOST = "it never arrives"
    LATE = "it is on its way when it is given up, and arrives when the test lets it"
    SYNCED = "it is written, which is told, and synced, which is not"
    VANISHED = "it is told to be written, and lost with all that is sent after it, which is not told"


UNKNOWN = [fate for fate in Fate if fate is not Fate.KNOWN]


class UncertainSent:
    """What was written; whether it is synced nobody will know."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.done = False
        self._callbacks: list[SyncedCallback] = []
        self._decided = anyio.Event()

    async def synced(self) -> None:
        await self._decided.wait()
        raise _lost_answer()

    def on_synced(self, callback: SyncedCallback, /) -> None:
        if self.done:
            callback(_lost_answer())
        else:
            self._callbacks.append(callback)

    def decide(self) -> None:
        self.done = True
        self._decided.set()
        for callback in self._callbacks:
            callback(_lost_answer())


class UncertainTopic:
    """A topic as `UncertainBroker` opens it: everything but sends is that of the store below."""

    def __init__(self, inner: Any, broker: UncertainBroker) -> None:
        self._inner = inner
        self._broker = broker
        self._vanishing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _fate(self) -> Fate:
        fate = Fate.VANISHED if self._vanishing else self._broker.fate()
        self._broker.met.append(fate)
        if fate is Fate.VANISHED:
            self._vanishing = True
        return fate

    def _before(self, fate: Fate, messages: Sequence[Buffer]) -> UncertainSent | None:
        """What happens to a send that does not get to the store, or not now."""
        if fate is Fate.VANISHED:
            return self._broker.written(UncertainSent(-1, -1))
        if fate is Fate.LATE:
            self._broker.late.append((self._inner, [bytes(message) for message in messages]))
            self._broker.on_late()
        if fate in (Fate.LOST, Fate.LATE):
            raise _lost_answer()
        return None

    def _after(self, fate: Fate, sent: Any) -> Any:
        if fate is Fate.STORED:
            raise _lost_answer()
        return self._broker.written(UncertainSent(sent.first, sent.last)) if fate is Fate.SYNCED else sent

    async def send(self, messages: Sequence[Buffer]) -> Any:
        fate = self._fate()
        return self._before(fate, messages) or self._after(fate, await self._inner.send(messages))

    def send_nowait(self, messages: Sequence[Buffer]) -> Any:
        fate = self._fate()
        return self._before(fate, messages) or self._after(fate, self._inner.send_nowait(messages))


class UncertainBroker:
    """Opens topics whose sends have the fates that the test decides.

    Args:
        inner: The broker below.
        without: Capabilities that it is to do without.
    """

    def __init__(self, inner: Any, without: frozenset[str]) -> None:
        self._inner = inner
        self.soon: Callable[[Callable[[], object]], object] = LoopHandle().post
        """Calls a function soon: with it, what was written is told not to be known."""
        self.capabilities: frozenset[str] = inner.capabilities - without
        self.fates: deque[Fate] = deque()
        """Of the next sends."""
        self.fate: Callable[[], Fate] = lambda: self.fates.popleft() if self.fates else Fate.KNOWN
        self.met: list[Fate] = []
        """Those of all that were sent."""
        self.late: list[tuple[Any, list[bytes]]] = []
        """What is still on its way."""
        self.on_late: Callable[[], object] = lambda: None
        """Is called when there is more."""
        self.holding: list[UncertainSent] | None = None
        """If it is a list, what was written is added, and the test decides when it is told not to be known."""
        self.failing: KafkaError | None = None
        """What opening fails with."""
        self.epochs: list[int] = []
        """Under which topics were opened."""

    def written(self, sent: UncertainSent) -> UncertainSent:
        if self.holding is None:
            self.soon(sent.decide)
        else:
            self.holding.append(sent)
        return sent

    async def arrive(self) -> list[KafkaError]:
        """What is still on its way arrives; returns the errors of what is refused."""
        refused: list[KafkaError] = []
        late, self.late = self.late, []
        for topic, messages in late:
            try:
                await topic.send(messages)
            except KafkaError as error:
                refused.append(error)
        return refused

    async def open(self, place: Place, *args: Any, **options: Any) -> UncertainTopic:
        self.epochs.append(options["epoch"])
        if self.failing is not None:
            raise self.failing
        return UncertainTopic(await self._inner.open(place, *args, **options), self)

    async def delete(self, places: Iterable[Place], *, epoch: int) -> None:
        await self._inner.delete(places, epoch=epoch)


class UncertainStore:
    """A store with such a broker; it is opened and closed with the store below."""

    def __init__(self, inner: Any, without: Iterable[str] = ()) -> None:
        self._inner = inner
        self._without = frozenset(without)
        self._broker: UncertainBroker | None = None

    @property
    def manager(self) -> Any:
        return self._inner.manager

    @property
    def broker(self) -> UncertainBroker:
        if self._broker is None:
            self._broker = UncertainBroker(self._inner.broker, self._without)
        return self._broker

    def on_failure(self, callback: Callable[[StorageError], object]) -> Callable[[], None]:
        return self._inner.on_failure(callback)  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)


def _lost_answer() -> OutcomeUnknownError:
    return OutcomeUnknownError("no answer came")
