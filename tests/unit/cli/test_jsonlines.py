"""JSON lines: what `consume` writes, `produce` reads back without loss."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.cli.jsonlines import LineError, dump, parse


@dataclass
class Record:
    topic: str = "t"
    partition: int = 0
    offset: int = 0
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


BYTES = st.one_of(st.none(), st.binary(), st.text().map(str.encode))
RECORDS = st.builds(
    Record,
    topic=st.text(min_size=1),
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    timestamp=st.integers(-1, 2**63 - 1),
    key=BYTES,
    value=BYTES,
    headers=st.lists(st.tuples(st.text(), BYTES)),
)


@pytest.mark.slow
@given(RECORDS)
def test_round_trip(record: Record) -> None:
    text = dump(record)
    assert "\n" not in text
    line = parse(text.encode())
    assert (line.key, line.value, line.headers) == (record.key, record.value, record.headers)
    assert line.partition == record.partition
    assert line.timestamp == (None if record.timestamp == -1 else record.timestamp)


def test_text_stays_readable_and_other_bytes_are_base64() -> None:
    record = Record(key="Zürich".encode(), value=b"\xff", headers=[("h", b"x"), ("h", None)])
    assert json.loads(dump(record)) == {
        "topic": "t", "partition": 0, "offset": 0, "timestamp": 0,
        "key": "Zürich", "value": {"base64": "/w=="}, "headers": [["h", "x"], ["h", None]],
    }  # fmt: skip
    assert "Zürich" in dump(record)


def test_a_line_may_say_little() -> None:
    assert parse("{}") == (None, None, [], None, None)
    assert parse('{"value": "v", "headers": {"a": "b"}}').headers == [("a", b"b")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('"a"', "not a JSON object"),
        ('{"valeu": "a"}', "unknown field 'valeu'"),
        ('{"value": 1}', "a value that is neither a string"),
        ('{"key": {"base64": "?"}}', "a key that is not base64"),
        ('{"key": {"base64": "", "x": 1}}', "a key that is neither"),
        ('{"value": "\\ud800"}', "half a surrogate pair"),
        ('{"headers": "a"}', "not a list of pairs"),
        ('{"headers": [["a"]]}', "not a pair"),
        ('{"headers": [["a", 1]]}', "header 'a'"),
        ('{"partition": -1}', "a partition that is not a valid number"),
        ('{"partition": 2147483648}', "a partition that is not a valid number"),
        ('{"timestamp": 9223372036854775808}', "a timestamp that is not a valid number"),
        ('{"timestamp": "now"}', "a timestamp that is not a valid number"),
        ('{"timestamp": true}', "a timestamp that is not a valid number"),
    ],
)
def test_lines_that_are_no_records(text: str, message: str) -> None:
    with pytest.raises(LineError, match=message):
        parse(text)


def test_lines_are_utf_8_with_or_without_a_mark() -> None:
    assert parse('{"value": "é"}'.encode("utf-8-sig")).value == "é".encode()
    for encoding in ("utf-16-le", "latin-1"):
        with pytest.raises(LineError, match="is not JSON"):
            parse('{"value": "é"}'.encode(encoding))
