"""`kclient produce`: JSON lines from standard input to a topic."""

from __future__ import annotations

import sys
import time

from kclient.cli import jsonlines, output
from kclient.cli.errors import FAILED, complain
from kclient.sync import Producer


def produce(topic: str, settings: dict[str, object]) -> int:
    """Send every line; returns the exit code. What came before a wrong line is sent."""
    started = time.monotonic()
    count = 0
    with Producer({"linger.ms": 5, **settings}) as producer:
        for number, text in enumerate(sys.stdin.buffer, 1):
            if not text.strip():
                continue
            try:
                line = jsonlines.parse(text)
            except jsonlines.LineError as error:
                producer.close()
                complain(f"line {number} {error}; the {count} records before it were sent")
                return FAILED
            producer.send(
                topic,
                value=line.value,
                key=line.key,
                headers=line.headers,
                timestamp=line.timestamp,
                partition=line.partition,
            )
            count += 1
        producer.flush()
    seconds = time.monotonic() - started
    output.note(f"{count} records sent to {topic} in {seconds:.1f} s")
    return 0
