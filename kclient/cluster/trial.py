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

    def __bool__(self) -> bool:
        return bool(self._outcomes)

    @contextmanager
    def asking(self, address: Address) -> Iterator[None]:
        """A broker is connected to, or asked, in the block."""
        name = str(address)
        self._outcomes.pop(name, None)  # the last that was asked comes last
        self._outcomes[name] = None
        try:
            yield
        except KafkaError as error:
            self._outcomes[name] = error
            raise
        self._outcomes.pop(name, None)

    @property
    def cause(self) -> BaseException | None:
        """The last failure."""
        failures = [error for error in self._outcomes.values() if error is not None]
        return failures[-1] if failures else None

    @property
    def unanswered(self) -> str:
        """The brokers that have neither answered nor failed; empty for none."""
        return "; ".join(f"{name}: {_reason(name, None)}" for name, error in self._outcomes.items() if error is None)

    def __str__(self) -> str:
        return "; ".join(f"{name}: {_reason(name, error)}" for name, error in self._outcomes.items())


def _reason(name: str, error: BaseException | None) -> str:
    if error is None:
        return "no answer"
    if isinstance(error, BrokerConnectionError) and [address for address, _ in error.attempts] == [name]:
        error = error.attempts[0][1]  # the address is told already
    return str(error) or type(error).__name__
