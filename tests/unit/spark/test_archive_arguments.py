"""What `archive` is given: destinations that are folders and those that only look like some, settings, failures."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kclient.config.secret import Secret
from kclient.errors import AuthenticationError, ConfigError, KafkaError
from kclient.spark import ArchiveError, DataLossError, archive
from kclient.spark.pipelines.archive import ArchiveRun
from kclient.spark.pipelines.job import cause_of
from kclient.spark.pipelines.places import local_folder
from kclient.spark.pipelines.planning import archivable_topics
from kclient.types import TopicPartition
from tests.unit.spark.fake_cluster import FakeCluster


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("archive", "archive"),
        ("./archive", "archive"),
        ("/data/archive", "/data/archive"),
        ("file:///data/archive", "/data/archive"),
        ("file:/data/archive", "/data/archive"),
        ("file://localhost/data/archive", "/data/archive"),
        ("file:///data/with%20space", "/data/with space"),
        (Path("/data/archive"), "/data/archive"),
        ("backup:2024", "backup:2024"),
        ("2024-05-17T22:00", "2024-05-17T22:00"),
        ("./s3://bucket", "s3:/bucket"),
        ("./C:/archive", "C:/archive"),
        ("/data/s3://bucket", "/data/s3:/bucket"),
    ],
)
def test_folders(given: str | Path, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_folder(given) == tmp_path / meant
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given",
    [
        "s3://bucket/x", "s3a://bucket/x", "S3://bucket/x", "hdfs://host:8020/x", "hdfs:/x", "gs://bucket/x",
        "abfs://container@account/x", "abfss://container@account/x", "wasbs://x/y", "dbfs:/mnt/x", "viewfs://x/y",
        "s3:bucket/x", "https://host/x", "ftp://host/x", "unheard.of+scheme://x", "C:\\archive", "C:/archive",
        Path("s3://bucket/x"), Path("hdfs:/x"),
    ],
)  # fmt: skip
def test_what_is_no_folder_of_a_file_system_is_refused_and_nothing_is_made(
    given: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"the archive's destination cannot be .* local or mounted file system"):
        local_folder(given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["file://host/x", "file:x", "file:", "file://", "", " ", "a\0b"])
def test_what_names_no_folder_is_refused(given: str) -> None:
    with pytest.raises(ConfigError):
        local_folder(given)


def run(settings: Mapping[str, Any], codec: str = "snappy", **more: Any) -> ArchiveRun:
    conf = SimpleNamespace(get=lambda name, default: codec)
    spark: Any = SimpleNamespace(sparkContext=None, conf=conf)
    arguments = {"topics": ["t"], "pattern": None, **more}
    return ArchiveRun(spark, Path("x"), settings, arguments["topics"], arguments["pattern"], True, False, None)


BROKER = {"bootstrap.servers": "localhost:9092"}


def test_a_pattern_matches_whole_names() -> None:
    """Unlike the option of the data source, which is as Spark's own."""
    cluster = FakeCluster({TopicPartition(name, 0): (0, 1) for name in ("flights", "my-flights", "flights-2")})
    options = run(BROKER, topics=[], pattern="flight.")._options
    assert list(archivable_topics(cluster, options)) == ["flights"]


def settings_of(given: Mapping[str, Any]) -> dict[str, str]:
    return dict(run(given)._options.settings)


def test_settings_reach_the_consumers() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="hidden";'
    given = {
        "bootstrap_servers": ["a:1", "b:2"], "fetch.max.bytes": 7, "check_crcs": False,
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": Secret(jaas),
    }  # fmt: skip
    assert settings_of(given) == {
        "bootstrap.servers": "a:1,b:2", "fetch.max.bytes": "7", "check.crcs": "false",
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas,
        "isolation.level": "read_committed",
    }  # fmt: skip


def test_uncommitted_records_are_archived_on_request() -> None:
    assert settings_of({**BROKER, "isolation_level": "read_uncommitted"})["isolation.level"] == "read_uncommitted"


@pytest.mark.parametrize(
    ("settings", "more", "message"),
    [
        ({}, {}, "bootstrap.servers is missing"),
        ({**BROKER, "isolation.lvel": "x"}, {}, "did you mean isolation.level"),
        ({**BROKER, "isolation.level": "x"}, {}, "isolation.level"),
        ({**BROKER, "auto.offset.reset": "latest"}, {}, "cannot be set"),
        ({**BROKER, "value.deserializer": "json"}, {}, "cannot be set"),
        ({**BROKER, "client.id": object()}, {}, "text or a number"),
        ({"bootstrap.servers": "memory:x"}, {}, "one process"),
        (BROKER, {"topics": "flights"}, r"topics=\['flights'\]"),
        (BROKER, {"topics": []}, "either topics or a pattern"),
        (BROKER, {"pattern": "x"}, "either topics or a pattern"),
        (BROKER, {"codec": "lzo"}, "spark.sql.parquet.compression.codec is 'lzo'"),
    ],
)
def test_what_is_wrong_is_said(settings: Mapping[str, Any], more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(settings, **more)


def test_spark_connect_is_told() -> None:
    connect: Any = SimpleNamespace()
    with pytest.raises(ConfigError, match="Spark Connect has no job groups"):
        archive(connect, "x", BROKER, topics=["t"])


SPARK_SAYS = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0
(TID 1) (vm executor driver): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/kclient/spark/reading.py", line 1, in batches
    raise ValueError("Error: within")
ValueError: a cause

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/kclient/spark/pipelines/tasks.py", line 44, in run
    yield from self._read(number, self._pieces[number])
{raised}

\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:1)
Caused by: java.io.IOException: something
"""

POOR = "Spark's workers run a Python that lacks a package: "


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        ("kclient.spark.ranges.DataLossError: t-0: gone", DataLossError, "t-0: gone"),
        ("kclient.spark.pipelines.manifest.ArchiveError: a worker: no", ArchiveError, "a worker: no"),
        ("kclient.errors._base.AuthenticationError: who are you", AuthenticationError, "who are you"),
        ("OSError: [Errno 28] No space", ArchiveError, "a task failed: OSError: [Errno 28] No space"),
        ("ValueError: odd", ArchiveError, "a task failed: ValueError: odd"),
        (
            "ModuleNotFoundError: No module named 'kclient'",
            ArchiveError,
            f"{POOR}No module named 'kclient'; pip install 'htp-kclient[spark]' for that Python, or name the one that",
        ),
        (
            "kclient.errors._local.MissingExtraError: in python3: pip install 'htp-kclient[spark]'",
            ArchiveError,
            f"{POOR}in python3: pip install 'htp-kclient[spark]'",
        ),
    ],
)
def test_what_a_task_raised_is_found_in_what_spark_says(raised: str, kind: type[KafkaError], text: str) -> None:
    cause = cause_of(RuntimeError(SPARK_SAYS.replace("{raised}", raised)))
    assert type(cause) is kind
    assert str(cause).startswith(text)


def test_what_no_task_raised_is_told_in_a_line() -> None:
    assert str(cause_of(RuntimeError("Job 1 cancelled\n\tat x"))) == "the Spark job failed: Job 1 cancelled"
    assert str(cause_of(RuntimeError())) == "the Spark job failed: RuntimeError"


def test_a_java_process_that_was_killed_is_no_broker() -> None:
    found = cause_of(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
    assert isinstance(found, ArchiveError)
    assert str(found).startswith("Spark's Java process does not answer any more; was it killed?")
