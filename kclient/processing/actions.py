"""What the scripts of processing ask for: written once, and carried out by the async or the blocking face."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kclient.arguments import shown
from kclient.producer import ProducerRecord

if TYPE_CHECKING:
    from kclient.consumer import ConsumerRecord
    from kclient.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Ask:
    """Call a method of a client or a function of the user's; await what it returns, if that can be awaited."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(slots=True)
class Collect:
    """Give the function something, and gather all records that it returns or yields."""

    argument: Any
    context: AbstractContextManager[None] | None = None
    """That of its span, for what is sent afterwards; None while tracing is off."""


@dataclass(slots=True)
class SendOutputs:
    """Send records, in order."""

    records: Sequence[ProducerRecord]
    sent: int = 0
    """How many were appended; also where it is broken off."""
    context: AbstractContextManager[None] | None = None
    """In which of `Collect` they belong."""


@dataclass(slots=True)
class ProcessRun:
    """Give the function one record after the other, and send what comes of each, until it is enough.

    It does what `Collect` and `SendOutputs` would do, without a script's turn for each record.
    """

    records: tuple[ConsumerRecord, ...]
    enough: Callable[[], bool]
    """Asked before each record."""
    done: int = 0
    """How many records are complete; also where it is broken off."""
    written: int = 0
    """What has come of them."""
    sending: bool = False
    """Whether the function is through with the record that comes next."""
    sent: int = 0
    """How much of what has come of that one is sent."""


@dataclass(frozen=True, slots=True)
class WorkThrough:
    """Carry out `ProcessingLoop.work` for each of these partitions, side by side as far as that is asked for."""

    partitions: list[TopicPartition]


@dataclass(frozen=True, slots=True)
class Idle:
    """Wait, or until `stop` is called."""

    seconds: float


Step: TypeAlias = Ask | Collect | SendOutputs | ProcessRun | WorkThrough | Idle
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
