"""Records that could not be processed, and what to do about them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kclient.arguments import check_topic, shown
from kclient.producer import ProducerRecord

if TYPE_CHECKING:
    from kclient.consumer import ConsumerRecord
    from kclient.types import TopicPartition


@dataclass(frozen=True, slots=True)
class ProcessingFailure:
    """What `on_error` is told of."""

    partition: TopicPartition
    """Where the records lie."""
    offset: int
    """Offset of the first of them."""
    records: tuple[ConsumerRecord, ...]
    """The record, or with `batch=True` the records; empty if the consumer could not deserialize it."""
    error: Exception
    """What the function raised, or why what it returned could not be sent."""
    attempts: int
    """How often it has failed by now, 1 the first time."""


@dataclass(frozen=True, slots=True)
class Raise:
    """End processing: the transaction is aborted, and the error raised. The default."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Go on without the records: their offsets are committed, nothing is written for them."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again later, `max_retries` times at most; then the error is raised.

    The records behind wait for it, those of other partitions do not. What is complete is committed meanwhile.
    """

    delay: float = 1.0
    """Seconds until then."""

    def __post_init__(self) -> None:
        if not isinstance(self.delay, int | float) or isinstance(self.delay, bool) or not 0 <= self.delay < 1e9:
            raise ValueError(f"the delay of a Retry is a number of seconds, 0 or more, not {shown(self.delay)}")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Write the records to another topic, not that which they are from, in the same transaction, and go on.

    Key, value, headers and timestamp are kept. Headers tell where the record is from and what went wrong; they are
    those of Kafka Streams (KIP-1034) with `kclient` in the place of `streams`: `__kclient.errors.topic`, `.partition`,
    `.offset`, `.exception` and `.message`. What a deserializer has made of key and value goes through the producer's
    serializers.
    """

    topic: str

    def __post_init__(self) -> None:
        check_topic(self.topic)

    def records(self, failure: ProcessingFailure) -> list[ProducerRecord]:
        """What to write."""
        kind = type(failure.error)
        about = [
            ("__kclient.errors.exception", f"{kind.__module__}.{kind.__qualname__}".encode()),
            ("__kclient.errors.message", str(failure.error).encode("utf-8", "replace")),
        ]
        return [
            ProducerRecord(
                self.topic,
                record.value,
                record.key,
                timestamp=record.timestamp if record.timestamp >= 0 else None,
                headers=[
                    *record.headers,
                    ("__kclient.errors.topic", record.topic.encode()),
                    ("__kclient.errors.partition", b"%d" % record.partition),
                    ("__kclient.errors.offset", b"%d" % record.offset),
                    *about,
                ],
            )
            for record in failure.records
        ]


FailureAction: TypeAlias = Raise | Skip | Retry | DeadLetter
"""What to do about a failure."""

OnError: TypeAlias = FailureAction | Callable[[ProcessingFailure], FailureAction | Awaitable[FailureAction]]
"""What to do about any failure, or a function that says so of each."""


def check_on_error(given: OnError) -> OnError:
    """Raise if this cannot say what to do.

    Raises:
        TypeError: It is neither an action nor a function.
    """
    if isinstance(given, type) or not (isinstance(given, Raise | Skip | Retry | DeadLetter) or callable(given)):
        raise TypeError(
            "on_error is Raise(), Skip(), Retry(...), DeadLetter(...), or a function that returns one of them, "
            f"not {shown(given)}"
        )
    return given


def as_action(given: object) -> FailureAction:
    """What a hook returned.

    Raises:
        TypeError: It is no action.
    """
    if isinstance(given, Raise | Skip | Retry | DeadLetter):
        return given
    raise TypeError(f"on_error has to return Raise(), Skip(), Retry(...) or DeadLetter(...), not {shown(given)}")
