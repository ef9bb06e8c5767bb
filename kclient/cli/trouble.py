"""Brokers that cannot be reached: said on standard error when it begins and when it is over, while the work goes on.

The clients go on trying by themselves, and log what happens to each address; this listens to that log. A broker that
hangs says nothing, so who waits for it is watched by what is heard from it (`Silence`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from kclient.cli import output
from kclient.cli.errors import reason_of
from kclient.cluster.connections import BACK, FAILED, LOST
from kclient.errors import BrokerConnectionError, KafkaError, KafkaTimeoutError

T = TypeVar("T")

_LOOKUP_S = 10.0
_PAUSE_S = 0.2
_SILENT_S = 5.0


class Trouble(logging.Handler):
    """Says which addresses are in trouble, each once, and which are out of it.

    Args:
        tell: Called with a sentence, by any thread.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self.down: set[str] = set()
        """The addresses that are in trouble."""
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        if record.msg == BACK:
            self._is_back(str(arguments[0]))
        elif record.msg in (FAILED, LOST):
            address, error = arguments
            if str(address) not in self.down and isinstance(error, BaseException) and _may_pass(error):
                self._is_down(str(address), error, lost=record.msg == LOST)
        elif record.levelno == logging.WARNING and record.name != "kclient.cluster":  # errors are raised
            self._tell(reason_of(RuntimeError(record.getMessage())))

    def _is_down(self, address: str, error: BaseException, *, lost: bool) -> None:
        self.down.add(address)
        reason = _reason(error).removeprefix(f"it broke: the connection to {address} ended: ")
        what = f"the connection to {address} is lost" if lost else f"{address} cannot be reached"
        self._tell(f"{what} ({reason}); trying again and again, Ctrl-C ends it")

    def _is_back(self, address: str) -> None:
        if address in self.down:
            self.down.discard(address)
            self._tell(f"{address} is reached again")


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
    trouble = listen(tell)
    try:
        yield trouble
    finally:
        logging.getLogger("kclient").removeHandler(trouble)


def listen(tell: Callable[[str], None]) -> Trouble:
    """From now on trouble with brokers is told."""
    trouble = Trouble(tell)
    logging.getLogger("kclient").addHandler(trouble)
    logging.getLogger("kclient.cluster").setLevel(logging.INFO)
    return trouble


def patiently(ask: Callable[[float], T]) -> T:
    """What `ask` returns; it is called with a timeout in seconds, again and again while no broker can be reached."""
    while True:
        try:
            return ask(_LOOKUP_S)
        except (KafkaTimeoutError, BrokerConnectionError) as error:
            if not error.retriable:
                raise
            time.sleep(_PAUSE_S)


class Silence:
    """Tells when nothing is heard from the brokers for long, and when they are heard again.

    Args:
        trouble: What has been told already.
        heard: Counts answers.
    """

    def __init__(self, trouble: Trouble, heard: Callable[[], float]) -> None:
        self._trouble = trouble
        self._heard = heard
        self._count = heard()
        self._since = time.monotonic()
        self._told = False

    def look(self, *, expected: bool) -> None:
        """Look whether there was an answer since; nothing is missed where none is expected."""
        count, now = self._heard(), time.monotonic()
        if count != self._count or not expected or self._trouble.down:
            if self._told and count != self._count:
                output.warn("the broker answers again")
                self._told = False
            self._count, self._since = count, now
        elif not self._told and now - self._since >= _SILENT_S:
            output.warn(f"the broker has not answered for {_SILENT_S:g} s; waiting for it, Ctrl-C ends it")
            self._told = True
