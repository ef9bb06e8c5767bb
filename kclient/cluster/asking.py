"""Asking the same of several, one after the other, until one of them answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from kclient.errors import ClosedError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from kclient.concurrency import Supervisor, TaskHandle

C = TypeVar("C")
T = TypeVar("T")


async def first_answer(
    candidates: Iterable[C],
    ask: Callable[[C], Awaitable[T]],
    *,
    patience: float,
    nobody: Callable[[list[tuple[C, KafkaError]]], KafkaError],
    supervisor: Supervisor,
) -> T:
    """The first answer of several candidates; what the others are asked is cancelled then.

    The next one is asked when those before could not be reached, or have not answered for a while: a hung one delays
    the answer by that time only. A retriable error that one answered (the broker is not ready, say) leaves those that
    were asked before it so long; no others are asked.

    Args:
        candidates: Whom to ask, in this order; they are drawn when their turn comes.
        ask: Asks one of them.
        patience: Seconds to wait for an answer before the next one is asked as well; doubled each time, so that
            where all of them are slow few are asked.
        nobody: Makes the error for the case that none could be reached.
        supervisor: Runs the questions.

    Raises:
        KafkaError: What `nobody` made; or an error that one of them answered, or at once one that is not retriable,
            since the others would say the same.
    """
    race = _Race[C, T](ask)
    last_wait = patience
    try:
        for candidate in candidates:
            race.start(candidate, supervisor)
            with anyio.move_on_after(patience) as waited:
                await race.news()
            if race.settled:
                break
            if waited.cancelled_caught:
                patience *= 2
        while race.running and not race.settled:
            await race.news()
        with anyio.move_on_after(last_wait):
            while race.running and not race.decided:  # one refused; the others may answer better
                await race.news()
    finally:
        race.cancel()
    if race.error is not None:
        raise race.error
    if race.answers:
        return race.answers[0]
    raise race.refusal or nobody(race.failures)


async def every_answer(
    candidates: Iterable[C], ask: Callable[[C], Awaitable[T]], *, supervisor: Supervisor
) -> dict[C, T | KafkaError]:
    """The answer of each candidate, or its error; they are asked at the same time, so that none waits for another.

    Args:
        candidates: Whom to ask.
        ask: Asks one of them.
        supervisor: Runs the questions.

    Raises:
        Exception: The first error that is not a `KafkaError`.
    """
    races = {candidate: _Race[C, T](ask) for candidate in candidates}
    try:
        for candidate, race in races.items():
            race.start(candidate, supervisor)
        for race in races.values():
            while race.running:
                await race.news()
    finally:
        for race in races.values():
            race.cancel()
    return {candidate: race.outcome for candidate, race in races.items()}


class _Race(Generic[C, T]):
    """Who has answered, and who has failed."""

    def __init__(self, ask: Callable[[C], Awaitable[T]]) -> None:
        self.running: set[TaskHandle] = set()
        self.answers: list[T] = []
        self.failures: list[tuple[C, KafkaError]] = []
        self.error: Exception | None = None
        """What all would say."""
        self.refusal: KafkaError | None = None
        """What one answered that may pass, and that others need not say."""
        self._ask = ask
        self._news = anyio.Event()

    @property
    def decided(self) -> bool:
        return bool(self.answers) or self.error is not None

    @property
    def settled(self) -> bool:
        return self.decided or self.refusal is not None

    def start(self, candidate: C, supervisor: Supervisor) -> None:
        task = supervisor.spawn(self._run, candidate, name="ask")
        self.running.add(task)
        task.on_done(self._over)

    async def _run(self, candidate: C) -> None:
        try:
            self.answers.append(await self._ask(candidate))
        except Exception as error:  # noqa: BLE001  (whoever wants the answer raises it)
            if not isinstance(error, KafkaError) or not error.retriable:
                self.error = error
            elif error.code is None:
                self.failures.append((candidate, error))
            else:
                self.refusal = error

    def _over(self, task: TaskHandle) -> None:
        self.running.discard(task)
        self._news.set()

    def cancel(self) -> None:
        for task in list(self.running):
            task.cancel()

    @property
    def outcome(self) -> T | KafkaError:
        """What became of it where there is one candidate only."""
        if self.answers:
            return self.answers[0]
        for _, error in self.failures:
            return error
        if self.refusal is not None:
            return self.refusal
        if self.error is None:
            return ClosedError("The question was given up: the client was closed")
        if not isinstance(self.error, KafkaError):
            raise self.error
        return self.error

    async def news(self) -> None:
        """Wait until one more has answered or failed."""
        await self._news.wait()
        self._news = anyio.Event()
