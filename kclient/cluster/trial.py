"""What was tried to get an answer, for the error that says why there is none."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from kclient.errors import BrokerConnectionError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kclient.net.address import Address


class Trial:
    """The brokers that one call has asked, each with what became of it last."""

    def __init__(self) -> None:
        self._outcomes: dict[str, BaseException | None] = {}
        self._earlier: dict[str, BaseException] = {}
        """Why those that are being asked again failed before."""

    def __bool__(self) -> bool:
        return bool(self._outcomes)

    @contextmanager
    def asking(self, address: Address) -> Iterator[None]:
        """A broker is connected to, or asked, in the block."""
        name = str(address)
        failed = self._outcomes.pop(name, None)  # the last that was asked comes last
        if failed is not None:
            self._earlier[name] = failed
        self._outcomes[name] = None
        try:
            yield
        except KafkaError as error:
            self._outcomes[name] = error
            raise
        self._outcomes.pop(name, None)
        self._earlier.pop(name, None)

    @property
    def cause(self) -> BaseException | None:
        """The last failure."""
        told = [error or self._earlier.get(name) for name, error in self._outcomes.items()]
        return next((error for error in reversed(told) if error is not None), None)

    @property
    def unanswered(self) -> str:
        """The brokers that have neither answered nor failed; empty for none."""
        return "; ".join(f"{name}: {self._reason(name)}" for name, error in self._outcomes.items() if error is None)

    def __str__(self) -> str:
        return "; ".join(f"{name}: {self._reason(name)}" for name in self._outcomes)

    def _reason(self, name: str) -> str:
        failed = self._outcomes[name]
        if failed is not None:
            return _text(name, failed)
        earlier = self._earlier.get(name)
        # the time may be over a moment after it was asked again: why it failed before says more than its silence
        return "no answer" if earlier is None else f"{_text(name, earlier)}, then no answer"


def _text(name: str, error: BaseException) -> str:
    if isinstance(error, BrokerConnectionError) and [address for address, _ in error.attempts] == [name]:
        error = error.attempts[0][1]  # the address is told already
    return str(error) or type(error).__name__
