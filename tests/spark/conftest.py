"""One Spark session for all Spark tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from kclient.cli.start import run
from tests.conftest import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    require_java()
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("kclient tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        # Not UTC on purpose: what depends on the session's time zone shows.
        .config("spark.sql.session.timeZone", "America/New_York")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@dataclass(frozen=True, slots=True)
class EndedCommand:
    """What a command that ran in this process left, by the names of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def pipeline(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., EndedCommand]:
    """Runs `kclient pipeline ARGUMENTS` on the tests' session: a process of its own would start Java first.

    Each pipeline has a test that runs it as people do, too.
    """
    monkeypatch.setattr(type(spark), "stop", lambda self: None)

    def pipeline(*arguments: object) -> EndedCommand:
        capfd.readouterr()
        code = run(["pipeline", *map(str, arguments)])
        return EndedCommand(code, *capfd.readouterr())

    return pipeline
