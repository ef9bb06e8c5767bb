"""`kclient store dump`: shows what is in a data directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from kclient.cli import output
from kclient.cli.errors import check_terminated
from kclient.gateway.dump import DumpedMessage, StoreDump
from kclient.htp.embedded.inspection import Inspection
from kclient.records import RecordBatchFraming


def dump(directory: str, topic: str | None, *, as_json: bool) -> int:
    """Print topics, rows and messages, of one topic of Kafka or all."""
    with Inspection(directory, RecordBatchFraming.name) as inspection:
        found = StoreDump(inspection, topic)
        if as_json:
            for line in _json_lines(found):
                check_terminated()
                output.line(line)
        else:
            _print(found)
    return 0


def _json_lines(found: StoreDump) -> Iterator[str]:
    for kind, values in (("topic", found.topics()), ("row", found.rows()), ("message", found.messages())):
        for value in values:
            # what is no part of it is left out: a field that is there says something
            fields = {name: field for name, field in value._asdict().items() if field is not None}
            yield json.dumps({"type": kind, **fields}, ensure_ascii=False)


def _print(found: StoreDump) -> None:
    output.table(
        ["HTP topic", "incarnation", "broker", "framing", "topic", "partition"],
        found.topics(),
        title="topics",
    )
    output.line("")
    output.table(
        ["key", "kind", "value"],
        ((row.key, row.kind, _shown_value(row.value, row.problem, row.base64)) for row in found.rows()),
        title="rows",
    )
    for (topic, broker), messages in groupby(found.messages(), key=lambda each: (each.htp_topic, each.broker)):
        output.line("")
        output.table(
            [
                "HTP topic",
                "broker",
                "segment",
                "byte",
                "bytes",
                "offsets",
                "timestamps",
                "CRC",
                "codec",
                "producer",
                "remarks",
            ],
            map(_shown, messages),
            title=f"messages of {topic} at {broker}",
        )


def _shown_value(value: Any, problem: str | None, base64: str | None) -> str:
    if problem is not None:
        return f"cannot be read: {problem}"
    if value is None:
        return f"base64: {base64}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _shown(message: DumpedMessage) -> tuple[Any, ...]:
    check_terminated()
    producer = None
    if message.producer_id is not None:
        producer = f"{message.producer_id} epoch {message.producer_epoch} sequence {message.base_sequence}"
    return (
        message.htp_topic,
        message.broker,
        message.segment,
        message.byte,
        message.bytes,
        _span(message.first_offset, message.last_offset),
        _span(_time(message.base_timestamp), _time(message.max_timestamp)),
        message.crc,
        message.codec,
        producer,
        ", ".join(_remarks(message)) or None,
    )


def _remarks(message: DumpedMessage) -> Iterator[str]:
    if message.crc == "none":
        yield "no whole message"
    if message.partition is not None:
        yield f"partition {message.partition}"
    if message.transactional:
        yield "transactional"
    if message.control:
        yield "control"
    if not message.counts:
        yield "does not count"


def _span(first: Any, last: Any) -> str | None:
    if first is None:
        return None if last is None else str(last)
    return f"{first}" if first == last else f"{first} – {last}"


def _time(ms: int | None) -> str | None:
    if ms is None or ms < 0:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # a producer may have sent anything
        return str(ms)
