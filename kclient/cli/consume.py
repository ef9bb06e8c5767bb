"""`kclient consume`: the records of topics as JSON lines."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterable

from kclient.cli import jsonlines, output
from kclient.cli.errors import UsageError
from kclient.errors import UnknownTopicOrPartitionError
from kclient.sync import Consumer
from kclient.types import TopicPartition

_LOOKUP_S = 20.0


def consume(
    topics: list[str],
    settings: dict[str, object],
    *,
    group: str | None,
    partitions: list[int],
    offset: str | None,
    from_beginning: bool,
    to_end: bool,
    limit: int | None,
) -> int:
    """Write records until the limit, the end or Ctrl-C; returns the exit code."""
    if group is not None and (partitions or offset or to_end):
        raise UsageError("--group shares the partitions out: it goes without --partition, --offset and --to-end")
    reset = "earliest" if from_beginning else "latest"
    defaults = {"allow.auto.create.topics": "false", "auto.offset.reset": reset, "enable.auto.commit": "false"}
    if group is not None:
        defaults["group.id"] = group
    with Consumer(config={**defaults, **settings}) as consumer:
        ends: dict[TopicPartition, int] | None = None
        if group is not None:
            _partitions(consumer, topics, [])  # says so if a topic does not exist
            consumer.subscribe(topics)
        else:
            assigned = _partitions(consumer, topics, partitions)
            consumer.assign(assigned)
            _place(consumer, assigned, offset, from_beginning=from_beginning)
            if to_end and offset is None and not from_beginning:
                output.note("--to-end shows nothing by itself: add --from-beginning or --offset")
            ends = consumer.end_offsets(assigned) if to_end else None
        _run(consumer, limit, ends, commit=group is not None)
    return 0


def _partitions(consumer: Consumer, topics: list[str], wanted: list[int]) -> list[TopicPartition]:
    existing = consumer.list_topics(timeout=_LOOKUP_S)
    found: list[TopicPartition] = []
    for topic in topics:
        if topic not in existing:
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}")
        known = {info.partition for info in existing[topic]}
        missing = sorted(set(wanted) - known)
        if missing:
            raise UnknownTopicOrPartitionError(f"topic {topic!r} has no partition {missing[0]}")
        found += [TopicPartition(topic, number) for number in sorted(wanted or known)]
    return found


def _place(consumer: Consumer, assigned: list[TopicPartition], offset: str | None, *, from_beginning: bool) -> None:
    if offset is None:
        (consumer.seek_to_beginning if from_beginning else consumer.seek_to_end)(assigned)
    elif offset == "earliest":
        consumer.seek_to_beginning(assigned)
    elif offset == "latest":
        consumer.seek_to_end(assigned)
    else:
        number = _number(offset)
        ends = consumer.end_offsets(assigned) if number < 0 else {}
        starts = consumer.beginning_offsets(assigned)
        for partition in assigned:
            place = number if number >= 0 else ends[partition] + number
            consumer.seek(partition, max(place, starts[partition]))


def _number(offset: str) -> int:
    try:
        return int(offset)
    except ValueError:
        raise UsageError(f"--offset is a number, earliest or latest, not {offset!r}") from None


def _run(consumer: Consumer, limit: int | None, ends: dict[TopicPartition, int] | None, *, commit: bool) -> None:
    write = _writer()
    left = limit
    while (left is None or left > 0) and not (ends is not None and _reached(consumer, ends)):
        records = list(consumer.poll(timeout=0.2 if ends is not None else 1.0))
        if ends is not None:
            records = [each for each in records if each.offset < ends[TopicPartition(each.topic, each.partition)]]
        if left is not None:
            records = records[:left]
            left -= len(records)
        if not records:
            _check_reader()
            continue
        write(jsonlines.dump(record) for record in records)
        if commit:
            consumer.commit({TopicPartition(each.topic, each.partition): each.offset + 1 for each in records})


def _check_reader() -> None:
    """Who waits for records that nobody would read (`| head`) may wait for ever.

    Raises:
        BrokenPipeError: Standard output is a pipe, and whoever read it has gone.
    """
    try:
        number = sys.stdout.fileno()
    except OSError:  # replaced by something that is no file
        return
    watched = select.poll()
    watched.register(number, 0)
    if any(event & select.POLLERR for _, event in watched.poll(0)):
        raise BrokenPipeError


def _reached(consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
    return all(consumer.position(partition) >= end for partition, end in ends.items())


def _writer() -> Callable[[Iterable[str]], None]:
    """How lines are written: coloured for people, else as they are, in UTF-8 whatever the locale."""
    if output.is_terminal():
        from rich.console import Console
        from rich.highlighter import JSONHighlighter

        console, highlighter = Console(soft_wrap=True), JSONHighlighter()

        def show(lines: Iterable[str]) -> None:
            for line in lines:
                console.print(highlighter(line))

        return show
    stdout = sys.stdout.buffer

    def write(lines: Iterable[str]) -> None:
        stdout.write("".join(f"{line}\n" for line in lines).encode())
        stdout.flush()

    return write
