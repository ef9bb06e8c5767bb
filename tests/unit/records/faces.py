"""Both implementations of the records in one process, each with the shared readers around it."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import kclient.records
from kclient.records._implementation import load
from kclient.records.arrow import ArrowDecoder
from kclient.records.arrow_source import ArrowEncoder
from kclient.records.batch_compaction import BatchCompactor
from kclient.records.conversion import RecordConverter
from kclient.records.reader import RecordReader


class Face:
    """What `kclient.records` exports, made over one implementation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.module: Any = load(name)
        reader = RecordReader(self.module)
        self.decode_records = reader.decode_records
        self.decode_some = reader.decode_some
        self.iter_batches = reader.iter_batches
        self.read_end_marker = reader.read_end_marker
        columns = ArrowDecoder(self.module)
        self.decode_arrow = columns.decode_arrow
        self.decode_arrow_some = columns.decode_arrow_some
        self.encode_arrow = ArrowEncoder(self.module.BatchBuilder).encode_arrow
        compactor = BatchCompactor(self.module)
        self.compact_batch = compactor.compact_batch
        self.marker_until = compactor.marker_until
        self.note_keys = compactor.note_keys
        converter = RecordConverter(self.module)
        self.down_convert = converter.down_convert
        self.up_convert = converter.up_convert
        self.batch_of_sent = converter.batch_of_sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def __repr__(self) -> str:
        return f"<Face {self.name}>"


def is_built() -> bool:
    """Whether the extension was built here; a test of its own says whether it should have been."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return (Path(kclient.records.__file__).parent / f"_compiled{suffix}").exists()


INTERPRETED = Face("interpreted")
COMPILED = Face("compiled") if is_built() else None
FACES = [INTERPRETED] + ([COMPILED] if COMPILED else [])

optional_bytes = st.none() | st.binary(max_size=300)
header_lists = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=3)
timestamps = st.integers(-1, 2**62)
rows = st.lists(st.tuples(timestamps, optional_bytes, optional_bytes, header_lists), min_size=1, max_size=12)


def build(face: Face, records: list[Any], **settings: Any) -> bytes:
    """A batch of (timestamp, key, value, headers), built by one implementation."""
    builder = face.BatchBuilder(limit=1 << 24, **settings)
    for row in records:
        assert builder.append(*row) >= 0
    return bytes(builder.build())


def message_set(magic: int, records: list[Any], base_offset: int = 0, **settings: Any) -> bytes:
    """A message set of (timestamp, key, value), which is the same for both implementations."""
    builder = kclient.records.MessageSetBuilder(magic=magic, limit=1 << 24, **settings)  # type: ignore[arg-type]
    for row in records:
        assert builder.append(*row[:3]) >= 0
    return bytes(builder.build(base_offset))


def outcome(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What a call returns, or the type, text and place of its error: to compare implementations."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return type(error), str(error), getattr(error, "offset", None), getattr(error, "position", None)
