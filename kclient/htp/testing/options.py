"""How a simulated installation behaves, and how its address says so."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from urllib.parse import parse_qsl

from kclient.arguments import shown
from kclient.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SimulatedOptions:
    """What an installation does to whoever uses it; each is a parameter of its address.

    Raises:
        ConfigError: A value makes no sense.
    """

    brokers: int = 1
    """So many brokers, `brk-0` and on."""
    seed: int = 0
    """Decides what is left to chance."""
    latency_ms: float = 0.0
    """A request, and an answer, take up to so long."""
    silent: float = 0.0
    """The share of sends that are not answered, from 0 to 1: they are lost, stored, or stored late."""
    silent_reads: float = 0.0
    """The share of all other requests to brokers that are not answered; clients send them three times."""
    timeout_ms: float = 3000.0
    """After this a client gives a request up."""
    late_ms: float = 0.0
    """A message that was given up may be stored up to so long after that."""
    stale_ms: float = 5000.0
    """What clients are told of topics that others have made or deleted is up to so old; brokers hear of it as late."""
    in_flight: int = 20
    """So many sends of one client are on their way at a time."""
    pull_messages: int = 20
    """So many messages are in an answer to a pull, at most."""

    def __post_init__(self) -> None:
        for name, least in (("brokers", 1), ("in_flight", 1), ("pull_messages", 1), ("timeout_ms", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {least} at least, not {shown(getattr(self, name))}")
        for name in ("latency_ms", "silent", "silent_reads", "late_ms", "stale_ms", "timeout_ms"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is a number from 0 on, not {shown(getattr(self, name))}")
        for name in ("silent", "silent_reads"):
            if getattr(self, name) > 1:
                raise ConfigError(f"{name} is a share from 0 to 1, not {shown(getattr(self, name))}")


def parse_address(rest: str) -> tuple[str, SimulatedOptions | None]:
    """The name of an installation, and how it behaves; None if its address does not say.

    Args:
        rest: `NAME`, or `NAME?brokers=3&seed=7`.

    Raises:
        ConfigError: A parameter is not known, or has no number.
    """
    name, _, query = rest.partition("?")
    types = {field.name: int if isinstance(field.default, int) else float for field in fields(SimulatedOptions)}
    given: dict[str, float] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise ConfigError(f"{shown(rest)}: parameters are NAME=VALUE with & between them: {error}") from error
    for key, value in pairs:
        if key not in types:
            raise ConfigError(f"simulated: stores have no parameter {shown(key)}; there are {', '.join(types)}")
        try:
            given[key] = types[key](value)
        except ValueError as error:
            raise ConfigError(f"{key} takes a number, not {shown(value)}") from error
    return name, SimulatedOptions(**given) if given else None  # type: ignore[arg-type]
