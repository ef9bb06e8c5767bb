"""`kclient consume`: the records of topics as JSON lines."""

from __future__ import annotations

import re
import select
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kclient.cli import jsonlines, output
from kclient.cli.errors import UsageError, check_terminated, sentence_of
from kclient.cli.growing import NewPartitions
from kclient.cli.settings import check_group, given_patience, refuse_group_settings
from kclient.cli.trouble import AGAIN_AND_AGAIN, Patience, patiently, told, trying_for
from kclient.errors import CommitFailedError, UnknownTopicOrPartitionError
from kclient.sync import Consumer
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from kclient.cli.to_end import ToEnd

EARLIEST, LATEST = "earliest", "latest"

_REQUEST_MS = "10000"
"""Who watches wants to know sooner that a broker hangs than the client's 30 seconds; `--config` overrides it."""

_OWN = {
    "enable.auto.commit": "with --group what was written is committed, and nothing else",
    "auto.commit.interval.ms": "with --group what was written is committed at once",
    "allow.auto.create.topics": "consume creates no topics",
    "exclude.internal.topics": "topics are named, and Kafka's own too",
}


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
    if group is not None and (partitions or offset is not None or to_end):
        raise UsageError("--group shares the partitions out: it goes without --partition, --offset and --to-end")
    if from_beginning and offset is not None:
        raise UsageError("--from-beginning and --offset both say where to begin: give one of them")
    given = {name.replace("_", ".") for name in settings}
    if from_beginning and "auto.offset.reset" in given:
        raise UsageError("--from-beginning and --config auto.offset.reset both say where to begin: give one of them")
    _check_config(given, group)
    place = None if offset is None else _number(offset)
    # where what was asked for is overtaken by retention, the oldest record that is left comes next, and not the end
    reset = LATEST if place in (None, LATEST) and not from_beginning else EARLIEST
    defaults = {
        "allow.auto.create.topics": "false", "auto.offset.reset": reset, "enable.auto.commit": "false",
        "request.timeout.ms": _REQUEST_MS,
    }  # fmt: skip
    if group is not None:
        defaults["group.id"] = group
    config = {**{name: value for name, value in defaults.items() if name not in given}, **settings}
    within = given_patience(settings)
    going_on = AGAIN_AND_AGAIN if within is None else trying_for(within)
    with told(going_on=going_on) as trouble, Consumer(config=config) as consumer, ExitStack() as stack:
        patience = Patience(within)
        end: ToEnd | None = None
        new: NewPartitions | None = None
        if group is not None:
            found = _partitions(consumer, patience, topics, [])  # says so if a topic does not exist
            if from_beginning:
                _tell_of_commits(consumer, patience, found, group)
            consumer.subscribe(topics)
        else:
            assigned = _partitions(consumer, patience, topics, partitions)
            consumer.assign(assigned)
            if offset is not None or "auto.offset.reset" not in given:  # else the consumer begins where that says
                _place(consumer, patience, assigned, EARLIEST if from_beginning else place)
            if to_end and offset is None and not from_beginning and "auto.offset.reset" not in given:
                output.note("--to-end shows nothing by itself: add --from-beginning or --offset")
            if to_end:
                from kclient.cli.to_end import ToEnd, open_admin

                end = ToEnd(consumer, stack.enter_context(open_admin(config)), assigned, patience)
            elif not partitions:
                new = NewPartitions(consumer, topics)
        trouble.going_on = AGAIN_AND_AGAIN
        _run(consumer, limit, end, new, commit=group is not None)
    return 0


def _check_config(given: set[str], group: str | None) -> None:
    """Settings that would have no effect, or break what the command does, are refused."""
    if group is not None:
        check_group(group)
    if "group.id" in given:
        raise UsageError("--group names the group, not --config group.id")
    for name in sorted(given & _OWN.keys()):
        raise UsageError(f"--config {name} has no place here: {_OWN[name]}")
    if group is None:
        refuse_group_settings(given, "name one with --group")


def _tell_of_commits(consumer: Consumer, patience: Patience, partitions: list[TopicPartition], group: str) -> None:
    """Say where --from-beginning is not where the group begins."""
    committed = patience(lambda timeout: consumer.committed(partitions, timeout=timeout))
    places = sum(place is not None for place in committed.values())
    if places:
        which = "all partitions" if places == len(partitions) else f"{places} of {len(partitions)} partitions"
        output.warn(
            f"the group {group} goes on where it stopped in {which}, not at the beginning; kclient groups reset moves"
            " it"
        )


def _partitions(consumer: Consumer, patience: Patience, topics: list[str], wanted: list[int]) -> list[TopicPartition]:
    existing = patience(lambda timeout: consumer.list_topics(timeout=timeout))
    found: list[TopicPartition] = []
    for topic in dict.fromkeys(topics):
        if topic not in existing:
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}")
        known = {info.partition for info in existing[topic]}
        missing = sorted(set(wanted) - known)
        if missing:
            raise UnknownTopicOrPartitionError(f"topic {topic!r} has no partition {missing[0]}")
        found += [TopicPartition(topic, number) for number in sorted(set(wanted) or known)]
    return found


def _place(consumer: Consumer, patience: Patience, assigned: list[TopicPartition], place: int | str | None) -> None:
    """Begin at an offset (below 0: so many before the end), `EARLIEST`, or at the end."""
    if place == EARLIEST:
        consumer.seek_to_beginning(assigned)
    elif not isinstance(place, int):
        consumer.seek_to_end(assigned)
    else:
        starts = patience(lambda timeout: consumer.beginning_offsets(assigned, timeout=timeout))
        ends = patience(lambda timeout: consumer.end_offsets(assigned, timeout=timeout))
        for partition in assigned:
            offset = place if place >= 0 else ends[partition] + place
            consumer.seek(partition, min(max(offset, starts[partition]), ends[partition]))
        _tell_of_bounds(place, starts, ends)


def _tell_of_bounds(place: int, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
    """Say where an offset that was named is not in the log."""
    if place < 0:
        return
    gone = [str(partition) for partition in sorted(starts) if place < starts[partition]]
    if gone:
        output.warn(f"offset {place} is gone from {', '.join(gone)}: beginning with the oldest record there")
    beyond = [str(partition) for partition in sorted(ends) if place > ends[partition]]
    if beyond:
        output.warn(f"offset {place} lies beyond the end of {', '.join(beyond)}: beginning at the end there")


def _number(offset: str) -> int | str:
    if offset in (EARLIEST, LATEST):
        return offset
    if re.fullmatch(r"-?[0-9]{1,19}", offset) and -(1 << 63) < int(offset) < 1 << 63:
        return int(offset)
    raise UsageError(f"--offset is a number, earliest or latest, not {offset!r}")


def _run(consumer: Consumer, limit: int | None, end: ToEnd | None, new: NewPartitions | None, *, commit: bool) -> None:
    write = _writer()
    left = limit
    while (left is None or left > 0) and not (end is not None and end.reached()):
        check_terminated()
        records = list(consumer.poll(timeout=1.0 if end is None else 0.2))
        if end is not None:
            records = end.of(records)
        if new is not None:
            new.assign()
        if left is not None:
            records = records[:left]
            left -= len(records)
        if not records:
            _check_reader()
            continue
        write(jsonlines.dump(record) for record in records)
        if commit:
            _commit(consumer, {TopicPartition(each.topic, each.partition): each.offset + 1 for each in records})


def _commit(consumer: Consumer, offsets: dict[TopicPartition, int]) -> None:
    """Tell the group what was written; what it gave to others meanwhile is theirs, and may come twice."""
    try:
        patiently(lambda timeout: consumer.commit(offsets, timeout=timeout))
    except CommitFailedError as error:
        output.warn(f"{sentence_of(error)}; going on")


def _check_reader() -> None:
    """Who waits for records that nobody would read (`| head`) may wait for ever.

    Raises:
        BrokenPipeError: Standard output is a pipe, and whoever read it has gone.
    """
    try:
        number = sys.stdout.fileno()
    except OSError:  # replaced by something that is not a file
        return
    watched = select.poll()
    watched.register(number, 0)
    if any(event & select.POLLERR for _, event in watched.poll(0)):
        raise BrokenPipeError


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
