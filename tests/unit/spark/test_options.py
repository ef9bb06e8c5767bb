"""The data source's options: what is wrong fails before any task, with the option's name in the sentence."""

import pytest

from kclient.errors import ConfigError, NotYetSupportedError
from kclient.spark.options import EARLIEST, LATEST, parse_read_options
from kclient.types import TopicPartition

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "flights"}


def test_defaults_are_those_of_the_built_in_source() -> None:
    options = parse_read_options(BASE)
    assert options.selection.topics == ("flights",)
    assert options.starting.everywhere == EARLIEST
    assert options.ending.everywhere == LATEST
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.settings == {"bootstrap.servers": "localhost:9092"}


def test_names_are_taken_in_any_letter_case() -> None:
    options = parse_read_options({**BASE, "INCLUDEHEADERS": "TRUE", "minpartitions": "7"})
    assert options.include_headers
    assert options.min_partitions == 7


def test_topics_are_separated_by_commas_and_read_once() -> None:
    assert parse_read_options({**BASE, "subscribe": " b, a ,b"}).selection.topics == ("a", "b")


def test_assign_and_offsets_by_partition() -> None:
    options = parse_read_options(
        {
            "kafka.bootstrap.servers": "x:1",
            "assign": '{"t":[1,0]}',
            "startingOffsets": '{"t":{"0":23,"1":-2}}',
            "endingOffsets": '{"t":{"0":50,"1":-1}}',
        }
    )
    assert options.selection.partitions == (TopicPartition("t", 0), TopicPartition("t", 1))
    assert options.starting.offsets == {TopicPartition("t", 0): 23, TopicPartition("t", 1): -2}
    assert options.ending.offsets == {TopicPartition("t", 0): 50, TopicPartition("t", 1): -1}


def test_a_timestamp_for_all_beats_timestamps_beats_offsets() -> None:
    everything = {
        **BASE,
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"flights":{"0":7}}',
        "startingOffsets": "earliest",
    }
    assert parse_read_options(everything).starting.timestamp == 5
    del everything["startingTimestamp"]
    assert parse_read_options(everything).starting.timestamps == {TopicPartition("flights", 0): 7}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subscribe": None}, "exactly one of the options assign, subscribe and subscribePattern"),
        ({"subscribePattern": ".*"}, "found subscribe and subscribePattern"),
        ({"subscribe": " , "}, "subscribe takes topics separated by commas"),
        ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "memory:x"}, "one process"),
        ({"bootstrap.servers": "x:1"}, "as in kafka.bootstrap.servers"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"startingOffsets": '{"flights":{"0":-1}}'}, "startingOffsets cannot be latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"endingOffsets": '{"flights":{"0":-7}}'}, "the least is -2"),
        ({"startingOffsets": '{"flights":[1]}'}, "takes JSON such as"),
        ({"startingOffsets": '{"flights":{"x":1}}'}, "takes JSON such as"),
        ({"startingOffsets": "{"}, "takes JSON such as"),
        ({"subscribe": None, "assign": '{"flights":[-1]}'}, "the option assign takes JSON"),
        ({"subscribe": None, "assign": "[]"}, "the option assign takes JSON"),
        ({"includeHeaders": "yes"}, "includeHeaders takes true or false"),
        ({"minPartitions": "0"}, "minPartitions must be at least 1"),
        ({"minPartitions": "many"}, "minPartitions takes a whole number"),
        ({"startingTimestamp": "-5"}, "startingTimestamp must be at least 0"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "takes error or latest"),
        ({"kafka.auto.offset.reset": "earliest"}, "startingOffsets says where to begin"),
        ({"kafka.value.deserializer": "x"}, "kafka.value.deserializer cannot be set"),
        ({"fetchOffset.numRetries": "3"}, "the client retries by itself"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, str | None], message: str) -> None:
    options = {name: value for name, value in {**BASE, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        parse_read_options(options)


def test_streaming_options_are_refused_not_ignored() -> None:
    with pytest.raises(NotYetSupportedError, match="maxOffsetsPerTrigger belongs to streaming reads"):
        parse_read_options({**BASE, "maxOffsetsPerTrigger": "100"})
