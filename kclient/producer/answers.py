"""What the accumulator answers: whether there was room, what is ready, what was taken away."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from kclient.producer.batch import ProducerBatch


class Full(Enum):
    """The answer of an append for which there is no room."""

    FULL = "full"


FULL: Final = Full.FULL


class NoMetadata(Enum):
    """The answer of an append to a topic, or a partition of it, that is not known yet."""

    NO_METADATA = "no metadata"


NO_METADATA: Final = NoMetadata.NO_METADATA


@dataclass(slots=True)
class Ready:
    """What may be sent now."""

    nodes: set[int] = field(default_factory=set)
    """Leaders for which a batch is ready."""
    next_at: float = inf
    """When the next batch becomes ready if nothing happens."""
    unknown_leaders: set[str] = field(default_factory=set)
    """Topics with a queued batch whose partition has no known leader."""


class Drained(NamedTuple):
    """What was taken away."""

    batches: dict[int, list[ProducerBatch]]
    """Closed batches by broker, none of them encoded yet."""
    more: bool
    """Whether one of these brokers could be sent another request at once."""
