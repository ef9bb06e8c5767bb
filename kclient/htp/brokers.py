"""The brokers of a store that keeps its messages in several shards: their names, and how many a URL asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from kclient.arguments import shown
from kclient.errors import ConfigError
from kclient.htp.errors import BindingError, TooFewBrokersError
from kclient.htp.port import Place, TopicInfo

__all__ = [
    "FIRST_BROKER",
    "MOST_BROKERS",
    "binding_of",
    "broker_names",
    "brokers_asked_for",
    "check_broker",
    "check_enough",
]

FIRST_BROKER: Final = "brk-0"
"""The one that each store has."""
MOST_BROKERS: Final = 256
"""So many a store may have; each of an embedded one has a thread of its own."""
_NAME: Final = re.compile(r"brk-(\d+)")
_OPTION: Final = re.compile(r"\?([a-z_]+)=([^?&=/]*)\Z")
"""At the end of a URL. A question mark that nothing of the kind follows belongs to the name before it."""


def broker_names(number: int) -> list[str]:
    """The names of so many brokers."""
    return [f"brk-{each}" for each in range(number)]


def brokers_asked_for(rest: str, brokers: int | None = None) -> tuple[str, int | None]:
    """How many brokers a store is to have: what its URL ends in (`?brokers=3`), or what is given beside it.

    Args:
        rest: The URL without its scheme.
        brokers: What is given beside it.

    Returns:
        The rest without the option, and the number; None if nobody says one.

    Raises:
        ConfigError: If it is no such number, two are given that differ, or the URL has another option.
    """
    option = _OPTION.search(rest)
    if option is None:
        return rest, None if brokers is None else _checked(brokers)
    name, value = option.groups()
    if name != "brokers":
        raise ConfigError(f"{shown(name)} is not an option of a store's address: there is ?brokers=N")
    told = _checked(int(value) if value.isascii() and value.isdigit() and len(value) < 9 else value)
    if brokers is not None and _checked(brokers) != told:
        raise ConfigError(f"the store's address says brokers={told}, and brokers={brokers} is given beside it")
    return rest[: option.start()], told


def _checked(brokers: object) -> int:
    if not isinstance(brokers, int) or isinstance(brokers, bool) or not 1 <= brokers <= MOST_BROKERS:
        raise ConfigError(f"brokers is a number from 1 to {MOST_BROKERS}, not {shown(brokers)}")
    return brokers


def check_broker(broker: str, there: Sequence[str]) -> None:
    """See to it that a topic is bound to a broker that there is. Raises `BindingError`."""
    if broker not in there:
        raise BindingError(f"There is no broker {broker!r}: there is {', '.join(there)}")


def binding_of(info: TopicInfo, broker: str) -> Place | None:
    """Where a topic lies at a broker, if it is bound to that one already.

    Raises:
        BindingError: If it is bound to none.
    """
    if info.broker is None:
        raise BindingError(f"{info.topic} was created without a broker: its messages may be at any")
    return next((place for place in info.places if place.broker == broker), None)


def check_enough(store: str, number: int, bound: Iterable[str | None]) -> None:
    """See to it that all topics of a store are at its first brokers.

    Args:
        store: How it is called.
        number: So many brokers it is to have.
        bound: The brokers that hold topics.

    Raises:
        TooFewBrokersError: If some of them are not among those.
    """
    numbers = [int(name[1]) for each in bound if each and (name := _NAME.fullmatch(each))]
    needed = max(numbers, default=0) + 1
    if needed > number:
        raise TooFewBrokersError(
            f"{store} holds topics at brk-{needed - 1}, and was to be opened with {number} of its brokers: "
            f"open it with brokers={needed}, or without saying how many",
            needed=needed,
        )
