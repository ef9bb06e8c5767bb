"""What the scripts of processing ask for: written once, and carried out by the async or the blocking face."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kclient.arguments import shown
from kclient.producer import ProducerRecord

if TYPE_CHECKING:
    from kclient.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Ask:
    """Call a method of a client or a function of the user's; await what it returns, if that can be awaited."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Collect:
    """Give the function something, and gather all records that it returns or yields."""

    argument: Any


@dataclass(slots=True)
class SendOutputs:
    """Send records, in order."""

    records: list[ProducerRecord]
    sent: int = 0
    """How many were appended; also where it is broken off."""


@dataclass(frozen=True, slots=True)
class WorkThrough:
    """Carry out `ProcessingLoop.work` for each of these partitions, side by side as far as that is asked for."""

    partitions: list[TopicPartition]


@dataclass(frozen=True, slots=True)
class Idle:
    """Wait, or until `stop` is called."""

    seconds: float


Step: TypeAlias = Ask | Collect | SendOutputs | WorkThrough | Idle
ProcessingScript: TypeAlias = Generator[Step, Any, None]


def as_output(given: object) -> ProducerRecord:
    """What a function has yielded.

    Raises:
        TypeError: It is no record to be sent.
    """
    if isinstance(given, ProducerRecord):
        return given
    raise TypeError(
        "the function returns None, a kclient.ProducerRecord or an iterable of these (an async one for async code); "
        f"there was {shown(given)}"
    )
