"""`kclient produce`: JSON lines from standard input to a topic."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from kclient.cli import jsonlines, output
from kclient.cli.errors import FAILED, Terminated, complain, sentence_of
from kclient.cli.trouble import told
from kclient.errors import RecordTooLargeError, SerializationError, UnknownTopicOrPartitionError
from kclient.sync import Producer

_REFUSALS = (RecordTooLargeError, SerializationError, UnknownTopicOrPartitionError, TypeError, ValueError)
"""What is wrong with one record; other errors are the topic's or the connection's, whatever the line."""
_LAST_S = 5.0
"""How long an interrupted command goes on sending what it has read, in seconds."""


def produce(topic: str, settings: dict[str, object]) -> int:
    """Send every line; returns the exit code. What came before a wrong line, Ctrl-C or SIGTERM is sent."""
    started = time.monotonic()
    count = 0
    with told(), Producer({"linger.ms": 5, **settings}) as producer:
        for number, text in enumerate(_lines(producer), 1):
            if not text.strip():
                continue
            try:
                line = jsonlines.parse(text)
            except jsonlines.LineError as error:
                return _stop(producer, f"line {number} {error}", count)
            try:
                producer.send(
                    topic,
                    value=line.value,
                    key=line.key,
                    headers=line.headers,
                    timestamp=line.timestamp,
                    partition=line.partition,
                )
            except _REFUSALS as error:
                return _stop(producer, f"line {number} is refused: {sentence_of(error)}", count)
            count += 1
        producer.flush()
    seconds = time.monotonic() - started
    output.note(f"{count} records sent to {topic} in {seconds:.1f} s")
    return 0


def _stop(producer: Producer, why: str, count: int) -> int:
    """Send what came before a wrong line, and say which line it was; returns the exit code."""
    producer.close()
    sent = f"the {count} records before it were sent" if count else "nothing was sent"
    complain(f"{why}; {sent}")
    return FAILED


def _lines(producer: Producer) -> Iterator[bytes]:
    """The lines of standard input; who is interrupted while it waits for one has sent those before it."""
    try:
        yield from sys.stdin.buffer
    except (KeyboardInterrupt, Terminated):
        producer.close(_LAST_S)
        raise
