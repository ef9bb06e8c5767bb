"""Brokers that cannot be reached, break off or hang: said on standard error when it begins and when it is over.

The clients go on trying by themselves; this listens to what they tell of brokers, and to what they warn of.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from kclient.cli import output
from kclient.cli.errors import check_terminated, reason_of
from kclient.cluster.news import SILENT_S, BrokerEvent, BrokerNews, listening
from kclient.errors import BrokerConnectionError, KafkaError, KafkaTimeoutError

T = TypeVar("T")

_LOOKUP_S = 10.0
_PAUSE_S = 0.2


AGAIN_AND_AGAIN = "trying again and again"
UNTIL_RECORDS_TIME_OUT = "trying again until records time out"


def trying_for(patience: object) -> str:
    """What a command does that gives up after so many milliseconds, which may be text."""
    text = str(patience)
    return f"trying for {int(text) / 1000:g} s" if text.isdecimal() else AGAIN_AND_AGAIN  # else it is refused yet


class Trouble(logging.Handler):
    """Says which addresses are in trouble, each once, and which are out of it.

    Args:
        tell: Called with a sentence, by any thread.
        going_on: What the command does then.
    """

    def __init__(self, tell: Callable[[str], None], going_on: str) -> None:
        super().__init__(logging.WARNING)
        self._down: dict[str, BrokerNews] = {}
        self._up = set[str]()
        self._tell = tell
        self.going_on = going_on
        """What the command does when the next broker is in trouble."""

    @property
    def nobody_answers(self) -> bool:
        """Whether brokers are in trouble, and none is known to be out of it."""
        return bool(self._down) and not self._up

    def emit(self, record: logging.LogRecord) -> None:
        """What clients warn of; of brokers there are news, and errors are raised."""
        if record.levelno == logging.WARNING and record.name != "kclient.cluster":
            self._tell(reason_of(RuntimeError(record.getMessage())))

    def mute(self) -> None:
        """Tell nothing any more."""
        self._tell = lambda text: None

    def hear(self, news: BrokerNews) -> None:
        """What became of a broker."""
        if news.event in {BrokerEvent.BACK, BrokerEvent.REACHED}:
            self._answers(news.address)
        elif news.event is BrokerEvent.LEFT:
            self._up.discard(news.address)
            if self._down.pop(news.address, None) is not None:
                self._tell(f"{news.address} is no longer a broker of the cluster")
        else:
            self._up.discard(news.address)
            self._fails(news)

    def _answers(self, address: str) -> None:
        self._up.add(address)
        if self._down.pop(address, None) is not None:
            self._tell(f"{address} answers again")
        # the others need not answer, and may never be asked again
        self._down = {each: news for each, news in self._down.items() if not news.bootstrap}

    def _fails(self, news: BrokerNews) -> None:
        if news.bootstrap and news.event is BrokerEvent.LOST:
            return  # it is asked for brokers only, and another time
        if news.address not in self._down and (news.error is None or _may_pass(news.error)):
            self._down[news.address] = news
            self._tell(f"{_what(news)}; {self.going_on}, Ctrl-C ends it")


def _what(news: BrokerNews) -> str:
    if news.error is None:
        return f"{news.address} has not answered for {SILENT_S:g} s"
    reason = _reason(news.error).removeprefix(f"it broke: the connection to {news.address} ended: ")
    if news.event is BrokerEvent.LOST:
        return f"the connection to {news.address} is lost ({reason})"
    return f"{news.address} cannot be reached ({reason})"


def _may_pass(error: BaseException) -> bool:
    """Else the client raises it, and it is said then."""
    return not isinstance(error, KafkaError) or error.retriable


def _reason(error: BaseException) -> str:
    """The innermost reason that is known: the address has been named."""
    attempts = getattr(error, "attempts", None)
    while attempts:
        error = attempts[-1][1]
        attempts = getattr(error, "attempts", None)
    return reason_of(error)


@contextmanager
def told(tell: Callable[[str], None] = output.warn, *, going_on: str = AGAIN_AND_AGAIN) -> Iterator[Trouble]:
    """While the body runs, trouble with brokers is told, and what the command does then."""
    trouble = Trouble(tell, going_on)
    logger = logging.getLogger("kclient")
    logger.addHandler(trouble)
    try:
        with listening(trouble.hear):
            yield trouble
    finally:
        logger.removeHandler(trouble)


class Patience:
    """Asks again and again while no broker can be reached.

    Args:
        within: Milliseconds from now that all questions together may take, as text or a number; None lasts for ever.
    """

    def __init__(self, within: object = None) -> None:
        self._end = None if within is None else time.monotonic() + int(str(within)) / 1000

    def __call__(self, ask: Callable[[float], T]) -> T:
        """What `ask` returns, which is called with a timeout in seconds.

        Raises:
            KafkaError: Trying again cannot help, or the time is over.
        """
        while True:
            check_terminated()
            try:
                return ask(self._timeout())
            except KafkaTimeoutError as error:
                if not error.retriable or self._end is not None:  # it had all the time
                    raise
            except BrokerConnectionError as error:
                if not error.retriable or self._timeout() <= _PAUSE_S:
                    raise
            time.sleep(_PAUSE_S)

    def _timeout(self) -> float:
        return _LOOKUP_S if self._end is None else max(self._end - time.monotonic(), 0)


patiently: Patience = Patience()
"""Asks until Ctrl-C ends it."""
