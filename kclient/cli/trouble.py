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
from kclient.cli.errors import reason_of
from kclient.cluster.news import SILENT_S, BrokerEvent, BrokerNews, listening
from kclient.errors import BrokerConnectionError, KafkaError, KafkaTimeoutError

T = TypeVar("T")

_LOOKUP_S = 10.0
_PAUSE_S = 0.2


class Trouble(logging.Handler):
    """Says which addresses are in trouble, each once, and which are out of it.

    Args:
        tell: Called with a sentence, by any thread.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self.down: set[str] = set()
        """The addresses that are in trouble."""
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """What clients warn of; of brokers there are news, and errors are raised."""
        if record.levelno == logging.WARNING and record.name != "kclient.cluster":
            self._tell(reason_of(RuntimeError(record.getMessage())))

    def mute(self) -> None:
        """Tell nothing any more."""
        self._tell = lambda text: None

    def hear(self, news: BrokerNews) -> None:
        """What became of a broker."""
        address, error = news.address, news.error
        if news.event is BrokerEvent.BACK:
            if address in self.down:
                self.down.discard(address)
                self._tell(f"{address} answers again")
        elif address not in self.down and (error is None or _may_pass(error)):
            self.down.add(address)
            self._tell(f"{_what(news)}; trying again and again, Ctrl-C ends it")


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
def told(tell: Callable[[str], None] = output.warn) -> Iterator[Trouble]:
    """While the body runs, trouble with brokers is told."""
    trouble = Trouble(tell)
    logger = logging.getLogger("kclient")
    logger.addHandler(trouble)
    try:
        with listening(trouble.hear):
            yield trouble
    finally:
        logger.removeHandler(trouble)


def patiently(ask: Callable[[float], T]) -> T:
    """What `ask` returns; it is called with a timeout in seconds, again and again while no broker can be reached."""
    while True:
        try:
            return ask(_LOOKUP_S)
        except (KafkaTimeoutError, BrokerConnectionError) as error:
            if not error.retriable:
                raise
            time.sleep(_PAUSE_S)
