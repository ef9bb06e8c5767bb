"""The lag of queries, out of the progress that Spark tells."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kclient.errors import ConfigError
from kclient.spark.lag import lag_of
from kclient.spark.stream_offsets import StreamOffsets
from kclient.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
FOREIGN = {"endOffset": {"0": 7}, "latestOffset": None}


def progress(*sources: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"id": "q", "name": None, "batchId": 4, "sources": list(sources), **others}


def source(end: StreamOffsets, newest: StreamOffsets, *, text: bool = False) -> dict[str, Any]:
    found = {"endOffset": end.to_json(), "latestOffset": newest.to_json()}
    return {name: json.dumps(value) for name, value in found.items()} if text else found


@pytest.mark.parametrize("text", [False, True])
def test_what_is_left(text: bool) -> None:
    end = StreamOffsets({A0: 5, A1: 9}, {"a": "x"})
    newest = StreamOffsets({A0: 8, A1: 9, B0: 4}, {"a": "x", "b": "y"})
    lag = lag_of(progress(FOREIGN, source(end, newest, text=text), inputRowsPerSecond=2.5))
    assert lag is not None
    assert lag.partitions == {A0: 3, A1: 0, B0: 4}
    assert (lag.total, lag.greatest, lag.average) == (7, 4, 7 / 3)
    assert (lag.input_rows_per_second, lag.processed_rows_per_second) == (2.5, 0.0)
    assert json.loads(lag.to_json())["lag"] == {"total": 7, "max": 4, "average": 2.3}
    assert json.loads(lag.to_json())["partitions"] == {"a-0": 3, "a-1": 0, "b-0": 4}


def test_a_topic_that_was_created_again_is_all_to_be_read() -> None:
    lag = lag_of(progress(source(StreamOffsets({A0: 50}, {"a": "x"}), StreamOffsets({A0: 8}, {"a": "z"}))))
    assert lag is not None
    assert lag.partitions == {A0: 8}


def test_queries_of_other_sources() -> None:
    assert lag_of(progress(FOREIGN)) is None
    assert lag_of(progress({"endOffset": "no json", "latestOffset": "{}"})) is None
    assert lag_of(progress()) is None
    with pytest.raises(ConfigError, match="newer version"):
        lag_of(progress({"endOffset": {"format": 99, "topics": {}}, "latestOffset": {"format": 99, "topics": {}}}))
