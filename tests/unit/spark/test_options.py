"""The data source's options: what is wrong fails before any task, with the option's name in the sentence."""

from pathlib import Path

import pytest

from kclient.errors import ConfigError
from kclient.records.arrow import COLUMN_NAMES
from kclient.spark.options import EARLIEST, LATEST, parse_read_options
from kclient.types import TopicPartition

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "flights"}


def test_defaults_are_those_of_the_built_in_source() -> None:
    options = parse_read_options(BASE)
    assert options.selection.topics == ("flights",)
    assert options.starting.everywhere == EARLIEST
    assert options.ending.everywhere == LATEST
    assert options.fail_on_data_loss
    assert options.columns == COLUMN_NAMES[:-1]
    assert options.settings == {"bootstrap.servers": "localhost:9092"}


def test_names_are_taken_in_any_letter_case() -> None:
    options = parse_read_options({**BASE, "INCLUDEHEADERS": "TRUE", "minpartitions": "7"})
    assert options.columns == COLUMN_NAMES
    assert options.min_partitions == 7


def test_columns_are_chosen_and_ordered() -> None:
    assert parse_read_options({**BASE, "columns": "Offset, timestamptype"}).columns == ("offset", "timestampType")
    with_headers = {**BASE, "columns": "headers,key", "includeHeaders": "true"}
    assert parse_read_options(with_headers).columns == ("headers", "key")


def test_bytes_of_a_task_are_shared_out() -> None:
    given = {**BASE, "maxBytesPerTask": str(64 << 20), "kafka.max.partition.fetch.bytes": "1000"}
    options = parse_read_options(given)
    assert options.piece_bytes == 16 << 20
    assert options.settings == {
        "bootstrap.servers": "localhost:9092",
        "fetch.max.bytes": str(16 << 20),
        "max.partition.fetch.bytes": "1000",
        "fetch.max.decompressed.bytes": str(32 << 20),
    }


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
        *(
            ({f"{name}{suffix}": value}, f"{name}{suffix} must name exactly the partitions .*; it names none")
            for name in ("startingOffsets", "endingOffsets")
            for suffix in ("", "ByTimestamp")
            for value in ("{}", '{"flights":{}}')
        ),
        ({"startingOffsetsByTimestamp": '{"flights":{"0":-1}}'}, "holds -1; the least is 0"),
        ({"endingOffsetsByTimestamp": '{"flights":{"0":-2}}'}, "holds -2; the least is 0"),
        ({"subscribe": None, "assign": '{"flights":[-1]}'}, "the option assign takes JSON"),
        ({"subscribe": None, "assign": "[]"}, "the option assign takes JSON"),
        ({"includeHeaders": "yes"}, "includeHeaders takes true or false"),
        ({"columns": ""}, "columns takes some of key, value, topic, .*, not ''"),
        ({"columns": "value,values"}, "separated by commas, not 'value,values'"),
        ({"columns": "value,VALUE"}, "each once"),
        ({"columns": "value", "includeHeaders": "true"}, "name it there"),
        ({"minPartitions": "0"}, "minPartitions must be at least 1"),
        ({"maxBytesPerTask": "1000"}, "maxBytesPerTask takes 1048576 bytes or more"),
        ({"maxBytesPerTask": "64m"}, "maxBytesPerTask takes a whole number"),
        ({"minPartitions": "many"}, "minPartitions takes a whole number"),
        ({"startingTimestamp": "-5"}, "startingTimestamp must be at least 0"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "takes error or latest"),
        ({"kafka.auto.offset.reset": "earliest"}, "startingOffsets says where to begin"),
        ({"kafka.value.deserializer": "x"}, "kafka.value.deserializer cannot be set"),
        ({"fetchOffset.numRetries": "0"}, "fetchOffset.numRetries must be at least 1"),
        ({"fetchOffset.retryIntervalMs": "-1"}, "fetchOffset.retryIntervalMs must be at least 0"),
        ({"fetchOffset.retryIntervalMs": str(2**63 - 1)}, "fetchOffset.retryIntervalMs must be at most 2147483647"),
        ({"fetchOffset.retryIntervalMs": str(2**31)}, "fetchOffset.retryIntervalMs must be at most 2147483647"),
        ({"kafkaConsumer.pollTimeoutMs": str(2**31)}, "kafkaConsumer.pollTimeoutMs must be at most 2147483647"),
        ({"kafkaConsumer.pollTimeoutMs": "0"}, "kafkaConsumer.pollTimeoutMs must be at least 1"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger takes a whole number"),
        ({"groupIdPrefix": ""}, "groupIdPrefix is empty"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, str | None], message: str) -> None:
    options = {name: value for name, value in {**BASE, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        parse_read_options(options)


def test_streaming_options_are_left_aside_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    given = {"maxOffsetsPerTrigger": "100", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "15m"}
    parse_read_options({**BASE, **given})
    assert [record.getMessage().split()[2] for record in caplog.records] == list(given)
    with pytest.raises(ConfigError, match="minOffsetsPerTrigger \\(7\\) is above maxOffsetsPerTrigger \\(5\\)"):
        parse_read_options({**BASE, "minOffsetsPerTrigger": "7", "maxOffsetsPerTrigger": "5"})


def test_the_groups_name_begins_with_its_prefix(caplog: pytest.LogCaptureFixture) -> None:
    groups = [parse_read_options({**BASE, "groupIdPrefix": "team"}).settings["group.id"] for _ in range(2)]
    assert all(group.startswith("team-") for group in groups)
    assert groups[0] != groups[1]
    assert "group.id" not in parse_read_options(BASE).settings
    assert not caplog.records
    chosen = parse_read_options({**BASE, "groupIdPrefix": "team", "kafka.group.id": "mine"})
    assert chosen.settings["group.id"] == "mine"
    assert "groupIdPrefix has no effect" in caplog.text


def test_patience_with_offsets() -> None:
    options = parse_read_options({**BASE, "fetchOffset.numRetries": "7", "fetchOffset.retryIntervalMs": "0"})
    assert (options.offset_attempts, options.offset_retry_interval_ms) == (7, 0)


def test_a_directory_means_the_same_in_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="there is no broker's directory at embedded:data"):
        parse_read_options({**BASE, "kafka.bootstrap.servers": "embedded:data"})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "data").mkdir()
    (tmp_path / "data/format.json").write_text("{}")
    options = parse_read_options({**BASE, "kafka.bootstrap.servers": "embedded:data"})
    assert options.settings["bootstrap.servers"] == f"embedded:{tmp_path.resolve()}/data"
