"""Wrong arguments: each public function says which one it is, what it may be and what it was, in both
implementations alike."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kclient.records as public
from kclient.errors import ConfigError, KafkaError, SerializationError
from kclient.records import CompressionType, MessageSetBuilder
from tests.example_budget import examples
from tests.hostile_values import OfTheUsers, Shown, odd
from tests.unit.records.faces import FACES, Face, build, message_set, outcome
from tests.unit.records.public_calls import (
    BATCH,
    NO_FUNCTIONS,
    ODD_VALUES,
    OF_IMPLEMENTATIONS,
    READING,
    TABLE,
    WRITTEN_ONCE,
    framed,
)

INTERNALS = re.compile(
    r"object has no attribute|unpack|struct|out of bounds|integer is required|cannot be interpreted|incorrect type|"
    r"not subscriptable|not iterable|has no len|bytes-like|C (int|long)|too large to convert|positional|codec|"
    r"NoneType|expected|"
    r"unhashable|index out of range|Exceeds|issubclass|released memoryview|underlying|multi-dim|required"
)
"""What Python, struct and Cython say of their own affairs."""


def result(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What a call returns, or type and text of the error, which is one that a user can make something of."""
    try:
        return function(*args, **kwargs)
    except (TypeError, ValueError, KafkaError) as error:
        kind, text = type(error), str(error)
    assert not INTERNALS.search(text), f"{kind.__name__}: {text}"
    assert kind in (TypeError, ValueError) or issubclass(kind, KafkaError), kind
    assert len(text) < 600
    return kind, text


def test_every_public_function_is_called() -> None:
    called = {name.split(".")[0] for name in (*OF_IMPLEMENTATIONS, *WRITTEN_ONCE)}
    assert called | NO_FUNCTIONS == set(public.__all__)
    for function, arguments in WRITTEN_ONCE.values():
        function(**arguments)
    for function, arguments in OF_IMPLEMENTATIONS.values():
        for face in FACES:
            function(face, **arguments)


def check(name: str, odd: dict[str, int]) -> None:
    function, arguments = OF_IMPLEMENTATIONS.get(name) or WRITTEN_ONCE[name]
    faces: list[Any] = [(face,) for face in FACES] if name in OF_IMPLEMENTATIONS else [()]
    results = []
    for face in faces:
        # made anew for each: an iterator is used up
        replaced = {argument: ODD_VALUES[index]() for argument, index in odd.items()}
        results.append(result(function, *face, **{**arguments, **replaced}))
    assert all(found == results[0] for found in results), results


@pytest.mark.parametrize("name", [*OF_IMPLEMENTATIONS, *WRITTEN_ONCE])
def test_each_argument_with_every_odd_value(name: str) -> None:
    for argument in (OF_IMPLEMENTATIONS.get(name) or WRITTEN_ONCE[name])[1]:
        for index in range(len(ODD_VALUES)):
            check(name, {argument: index})


@pytest.mark.parametrize("name", [*OF_IMPLEMENTATIONS, *WRITTEN_ONCE])
@examples(30)
@given(st.data())
def test_several_odd_values_at_once(name: str, data: st.DataObject) -> None:
    names = sorted((OF_IMPLEMENTATIONS.get(name) or WRITTEN_ONCE[name])[1])
    odd = data.draw(st.dictionaries(st.sampled_from(names), st.integers(0, len(ODD_VALUES) - 1), max_size=4))
    check(name, odd)


@pytest.mark.parametrize("name", [*OF_IMPLEMENTATIONS, *WRITTEN_ONCE])
@examples(30)
@given(st.data())
def test_anything_at_all(name: str, data: st.DataObject) -> None:
    """Lying and raising objects too: what they raise themselves may reach whoever gave them."""
    function, arguments = OF_IMPLEMENTATIONS.get(name) or WRITTEN_ONCE[name]
    argument = data.draw(st.sampled_from(sorted(arguments)))
    for face in FACES if name in OF_IMPLEMENTATIONS else [None]:
        given_faces = () if face is None else (face,)
        value = data.draw(odd.map(Shown)).value
        try:
            result(function, *given_faces, **{**arguments, argument: value})
        except OfTheUsers:
            continue


def damaged() -> st.SearchStrategy[bytes]:
    """Batches of every compression and format with a few bytes changed, some of them cut off."""
    batches = [
        build(FACES[0], [(1000, b"k", b"v" * 50, [("h", b"x")]), (2000, None, b"w", [])], compression=codec)
        for codec in CompressionType
    ]
    batches += [
        message_set(magic, [(1000, b"k", b"v" * 50), (2000, None, b"w")], compression=codec)
        for magic in (0, 1)
        for codec in CompressionType
        if codec < CompressionType.ZSTD
    ]
    changes = st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=3)

    def changed(batch: bytes, places: list[tuple[float, int]], kept: float) -> bytes:
        buffer = bytearray(batch)
        for place, byte in places:
            buffer[int(place * len(buffer))] = byte
        return bytes(buffer[: round(kept * len(buffer))])

    return st.builds(changed, st.sampled_from(batches), changes, st.just(1.0) | st.floats(0, 1))


@examples(300)
@given(damaged(), st.booleans())
def test_damaged_bytes_are_told_of_in_words_of_their_own(data: bytes, check_crcs: bool) -> None:
    for call in (
        lambda face: repr(face.decode_records(data, "t", 0, check_crcs=check_crcs, max_decompressed=10_000)),
        lambda face: face.decode_arrow([("t", 0, data)], True, check_crcs=check_crcs, max_decompressed=10_000),
        lambda face: face.down_convert(data, 0, check_crcs=check_crcs, max_decompressed=10_000),
        lambda face: face.up_convert(data, 2, check_crcs=check_crcs, max_decompressed=10_000),
        lambda face: public.check_batch(data),
        lambda face: public.read_header(data),
    ):
        results = [result(call, face) for face in FACES]
        assert all(found == results[0] for found in results)
        if type(results[0]) is tuple and isinstance(results[0][0], type):
            assert issubclass(results[0][0], KafkaError), results[0]
    result(framed, data, 0)


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (-1, "-1"),
        (0, "0"),
        (True, "True (bool)"),
        ("10", "'10' (str)"),
        (1.5, "1.5 (float)"),
        (None, "None"),
        (2**63, str(2**63)),
    ],
)
def test_limits_of_decompression(face: Face, limit: Any, shown: str) -> None:
    text = f"max_decompressed must be an integer from 1 to 9223372036854775807, not {shown}"
    for call in (
        lambda: face.decode_records(BATCH, "t", 0, max_decompressed=limit),
        lambda: face.iter_batches(BATCH, "t", 0, max_decompressed=limit),
        lambda: face.decode_arrow([], max_decompressed=limit),
        lambda: face.down_convert(BATCH, 1, max_decompressed=limit),
        lambda: face.up_convert(b"", 2, max_decompressed=limit),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        assert caught.value.message == text
        assert isinstance(caught.value, ValueError)


TIMESTAMP = (
    "a record's timestamp must be an integer: milliseconds since the epoch, at most 9223372036854775807, or -1 for none"
)
HEADERS = 'headers must be a list of pairs of str and bytes or None, as in [("name", b"value")]'


@pytest.mark.parametrize(
    ("timestamp", "kind", "text"),
    [
        (2**70, ValueError, f"{TIMESTAMP}, not 1180591620717411303424"),
        pytest.param(10**5000, ValueError, f"{TIMESTAMP}, not a number of 16610 bits", id="enormous"),
        (-2, ValueError, f"{TIMESTAMP}, not -2"),
        (1.0, TypeError, f"{TIMESTAMP}, not 1.0 (float)"),
        (True, TypeError, f"{TIMESTAMP}, not True (bool)"),
        (None, TypeError, f"{TIMESTAMP}, not None"),
        (
            datetime(2026, 1, 1, tzinfo=UTC),
            TypeError,
            f"{TIMESTAMP}, not datetime; use int(moment.timestamp() * 1000)",
        ),
    ],
)
def test_timestamps_that_are_none(face: Face, timestamp: Any, kind: type[Exception], text: str) -> None:
    builder = face.BatchBuilder(limit=1000)
    for call in (
        lambda: builder.append(timestamp, b"k", b"v"),
        lambda: builder.append_at(5, timestamp, b"k", b"v"),
        lambda: builder.append_many(timestamp, [b"v"]),
        lambda: face.encode_arrow(TABLE, limit=1000, timestamp=timestamp),
        lambda: MessageSetBuilder(magic=0, limit=1000).append(timestamp, b"k", b"v"),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind
        assert str(caught.value) == text
    assert builder.count == 0


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"h": b"v"}, f"{HEADERS}, not dict; use list(headers.items())"),
        ({}, f"{HEADERS}, not dict; use list(headers.items())"),
        ("ab", f"{HEADERS}, not 'ab' (str)"),
        (b"", f"{HEADERS}, not b'' (bytes)"),
        (0, f"{HEADERS}, not 0"),
        ([("h",)], f"{HEADERS}; one of them is a tuple of 1"),
        (["ab"], f"{HEADERS}; one of them is 'ab' (str)"),
        ([None], f"{HEADERS}; one of them is None"),
        ([(b"h", b"v")], "the key of a record header must be str, not bytes"),
        ([(None, b"v")], "the key of a record header must be str, not None"),
        (
            [("h", "v")],
            "a record's header value must be bytes, bytearray, memoryview or None, not str",
        ),
    ],
)
def test_headers_that_are_none(face: Face, headers: Any, text: str) -> None:
    builder = face.BatchBuilder(limit=1000)
    for call in (
        lambda: builder.append(1, b"k", b"v", headers),
        lambda: builder.append_at(1, 1, b"k", b"v", headers),
        lambda: public.size_of_record(b"k", b"v", headers),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == text
    assert builder.count == 0
    with pytest.raises(
        ValueError, match=r"^the key of a record header must be text that UTF-8 can hold, not '.ud800'$"
    ):
        builder.append(1, None, None, [("\ud800", None)])


@pytest.mark.parametrize("headers", [None, (), [], iter(())])
def test_no_headers(face: Face, headers: Any) -> None:
    builder = face.BatchBuilder(limit=1000)
    builder.append(1, b"k", b"v", headers)
    assert face.decode_records(builder.build(), "t", 0)[0].headers == ()


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"base_offset": -5}, "base_offset must be from 0 to 9223372036854775806, not -5"),
        ({"base_offset": 2**63 - 1}, "base_offset must be from 0 to 9223372036854775806, not 9223372036854775807"),
        ({"producer_id": -2}, "producer_id must be from -1 to 9223372036854775807, not -2"),
        ({"producer_epoch": 70_000}, "producer_epoch must be from -1 to 32767, not 70000"),
        ({"base_sequence": 2**31}, "base_sequence must be from -1 to 2147483647, not 2147483648"),
        ({"partition_leader_epoch": -2}, "partition_leader_epoch must be from -1 to 2147483647, not -2"),
        ({"last_offset_delta": -1}, "last_offset_delta must be from 0 to 2147483647, not -1"),
    ],
)
def test_numbers_of_a_batch(face: Face, numbers: dict[str, int], text: str) -> None:
    builder = face.BatchBuilder(limit=1000)
    builder.append(1, b"k", b"v")
    with pytest.raises(ValueError, match="must be") as caught:
        builder.build(**numbers)
    assert str(caught.value) == text
    for wrong in ("1", 1.0, True):
        with pytest.raises(TypeError, match=f"^{next(iter(numbers))} must be an integer from"):
            builder.build(**dict.fromkeys(numbers, wrong))
    assert builder.append(1, b"k", b"v") == 1, "nothing was built"


def test_settings_of_builders(face: Face) -> None:
    kinds = "NONE (0), GZIP (1), SNAPPY (2), LZ4 (3), ZSTD (4)"
    for settings, text in (
        ({"limit": "10"}, "limit must be an integer from 0 to 9223372036854775807, not '10' (str)"),
        ({"limit": True}, "limit must be an integer from 0 to 9223372036854775807, not True (bool)"),
        (
            {"limit": 1, "compression": CompressionType.GZIP, "level": "9"},
            "compression.gzip.level must be an integer between 1 and 9, or -1 for the default, not '9' (str).",
        ),
        (
            {"limit": 1, "compression": "zstd"},
            f"compression must be a CompressionType, one of {kinds}; not 'zstd' (str).",
        ),
    ):
        for make in (face.BatchBuilder, lambda **a: MessageSetBuilder(magic=1, **a)):
            with pytest.raises(ConfigError) as caught:
                make(**settings)
            assert caught.value.message == text
    with pytest.raises(ConfigError, match="does not know zstd"):
        MessageSetBuilder(magic=1, limit=1, compression=4)  # type: ignore[arg-type]


def test_positions() -> None:
    for call in (public.check_batch, public.read_header, public.iter_headers, public.RecordBatchFraming().verify):
        with pytest.raises(ValueError, match=r"^position must be from 0 to 9223372036854775807, not -5$"):
            call(BATCH, -5)
    for call in (public.check_batch, public.read_header, public.iter_headers):
        with pytest.raises(TypeError, match=r"^buffer must be bytes, bytearray or memoryview, not 'text' \(str\)$"):
            call("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="buffer must be one that can be written to, as a bytearray, not bytes"):
        public.restamp(BATCH, base_offset=1, partition_leader_epoch=1)  # type: ignore[arg-type]


def test_other_kinds_of_memoryviews(face: Face) -> None:
    """What is counted in other units than bytes is read as bytes all the same."""
    wide = memoryview(BATCH + bytes(-len(BATCH) % 4)).cast("I")
    assert public.check_batch(wide) == public.check_batch(BATCH)
    assert face.decode_records(wide, "t", 0) == face.decode_records(BATCH, "t", 0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"value": [b""]}, "not dict; use pyarrow.table(data)"),
        (5, "not 5"),
        ("text", "not 'text' (str)"),
        ([{"value": b""}], "what is iterated over gave dict"),
        ([pa.table({"value": [b""]})], "what is iterated over gave Table"),
    ],
)
def test_what_is_no_arrow_data(face: Face, data: Any, text: str) -> None:
    what = "data must be a pyarrow.Table, a pyarrow.RecordBatch or an iterable of RecordBatches"
    with pytest.raises(TypeError) as caught:
        list(face.encode_arrow(data, limit=1000))
    assert str(caught.value) in (f"{what}, {text}", f"{what}; {text}")


def test_columns_of_arrow_data(face: Face) -> None:
    value = pa.array([b"", b""])
    for columns, text in (
        ([("key", value)], "the column 'value' is missing"),
        ([("value", value), ("value", value)], "more than one column 'value'"),
        ([("value", value), ("timestamp", pa.array([2**64 - 1, 1], pa.uint64()))], "'timestamp' of type uint64 cannot"),
        ([("value", value), ("timestamp", pa.array([2**62, 1], pa.timestamp("s")))], r"timestamp\[s\] cannot be taken"),
        ([("value", pa.array([[b""], []]))], "'value' of type list<item: binary> cannot be taken as binary"),
    ):
        table = pa.Table.from_arrays([array for _, array in columns], names=[name for name, _ in columns])
        with pytest.raises(SerializationError, match=text):
            list(face.encode_arrow(table, limit=1000))
    with pytest.raises(SerializationError, match="'value' is missing"):
        list(face.encode_arrow(pa.table({"key": pa.array([], pa.binary())}), limit=1000))


def test_errors_come_with_the_call(face: Face) -> None:
    """Not only when what it returns is iterated over."""
    with pytest.raises(TypeError, match="buffer"):
        face.iter_batches("text", "t", 0)
    with pytest.raises(ConfigError, match="limit"):
        face.encode_arrow(TABLE, limit=-1)
    with pytest.raises(TypeError, match="key_deserializer must be a function or None, not 5"):
        face.decode_records(**{**READING, "key_deserializer": 5})


def test_record_without_leader_epoch(face: Face) -> None:
    for epoch in (None, -1):
        assert face.ConsumerRecord("t", 0, 1, 2, 0, b"", b"", (), epoch).leader_epoch is None
    text = str(outcome(face.ConsumerRecord, 5, 0, 1, 2, 0, b"", b""))
    assert "topic must be str, not 5" in text
