"""`kclient produce`: JSON lines from standard input to a topic."""

from __future__ import annotations

import sys
import time

from kclient.cli import jsonlines, output
from kclient.cli.errors import FAILED, Terminated, UsageError, check_terminated, complain, sentence_of
from kclient.cli.settings import check_topic_name
from kclient.cli.trouble import UNTIL_RECORDS_TIME_OUT, told
from kclient.errors import (
    DeliveryError,
    KafkaError,
    RecordTooLargeError,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from kclient.sync import Producer

_REFUSALS = (RecordTooLargeError, SerializationError, UnknownTopicOrPartitionError, TypeError, ValueError)
"""What is wrong with one record; other errors are the topic's or the connection's, whatever the line."""
_LAST_S = 5.0
"""How long an interrupted command goes on sending what it has read, in seconds."""
_IN_TROUBLE_S = 0.5
"""The same where no broker answers."""


def produce(topic: str, settings: dict[str, object]) -> int:
    """Send every line; returns the exit code. What came before a wrong line, Ctrl-C or SIGTERM is sent."""
    check_topic_name(topic)
    if "transactional.id" in {name.replace("_", ".") for name in settings}:
        raise UsageError("--config transactional.id has no place here: each line is sent by itself, in no transaction")
    started = time.monotonic()
    lines = _Lines(Producer({"linger.ms": 5, **settings}), topic)
    with told(going_on=UNTIL_RECORDS_TIME_OUT) as trouble:
        try:
            wrong = lines.send_all()
            lines.close()
        except (KeyboardInterrupt, Terminated):
            trouble.mute()  # what is not sent is said once
            lines.give_up(_IN_TROUBLE_S if trouble.nobody_answers else _LAST_S)
            complain(f"interrupted: {lines.acknowledged} records were acknowledged, {lines.rest}")
            raise
        except BaseException:  # whatever it is, nothing is waited for
            lines.give_up(0)
            raise
    if wrong or lines.failure:
        complain("; ".join(filter(None, (wrong, lines.account))))
        return FAILED
    output.note(f"{lines.acknowledged} records sent to {topic} in {time.monotonic() - started:.1f} s")
    return 0


class _Lines:
    """The lines of standard input on their way.

    Args:
        producer: Sends them; it is closed here.
        topic: Where to.
    """

    def __init__(self, producer: Producer, topic: str) -> None:
        self.read = 0
        """Records that were read."""
        self.failure: DeliveryError | None = None
        self._producer = producer
        self._topic = topic

    @property
    def acknowledged(self) -> int:
        """Records that are stored; known in the end.

        The producer counts, because a signal may fall between what it does and what is written down here.
        """
        return int(self._producer.metrics().value("record-send-total"))

    @property
    def account(self) -> str:
        """What became of the records that the producer took."""
        if self.failure is not None:
            return f"{sentence_of(self.failure)} ({self.acknowledged} were acknowledged)"
        return f"the {self.acknowledged} records before it were sent" if self.acknowledged else "nothing was sent"

    @property
    def rest(self) -> str:
        """What became of the others that were read."""
        lost, on_their_way = self.read - self.acknowledged, self._producer.metrics().value("record-error-total")
        return f"{lost} were not" + (" (those on their way may arrive all the same)" if on_their_way else "")

    def send_all(self) -> str | None:
        """Send every line; returns what is wrong with the line that ended it, if one did."""
        check_terminated()  # to wait for the first line may take for ever
        for number, text in enumerate(sys.stdin.buffer, 1):
            if not text.strip():
                continue
            try:
                line = jsonlines.parse(text)
            except jsonlines.LineError as error:
                return f"line {number} {error}"
            self.read += 1
            try:
                self._producer.send(
                    self._topic,
                    value=line.value,
                    key=line.key,
                    headers=line.headers,
                    timestamp=line.timestamp,
                    partition=line.partition,
                )
            except _REFUSALS as error:
                return f"line {number} is refused: {sentence_of(error)}"
            except KafkaError as error:
                return f"line {number} was not sent: {sentence_of(error)}"
            check_terminated()
        return None

    def close(self, timeout: float | None = None) -> None:
        """Wait until the fate of all is known, or so many seconds."""
        try:
            self._producer.close(timeout)
        except DeliveryError as error:
            self.failure = error

    def give_up(self, timeout: float) -> None:
        """As `close`; another interruption ends the wait."""
        try:
            self.close(timeout)
        except (KeyboardInterrupt, Terminated):
            self.close(0)
