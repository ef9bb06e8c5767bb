"""A streaming query in a Spark of its own, in which whatever is asked for dies once: for the exactly-once sink.

Deaths happen inside the data source, in the processes and at the moments that matter, and each only the first time: a
file says that it has happened. Run as a process it copies a topic; it may be started again on its checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kclient.spark import KclientDataSource
from kclient.spark.sink import KclientStreamWriter
from kclient.spark.sink_tasks import TaskOutcome
from kclient.sync import open_transactions

if TYPE_CHECKING:
    import pyarrow

REPOSITORY = Path(__file__).parents[1]
LOCAL, CLUSTER = "local[2,3]", "local-cluster[2,1,1024]"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "4",
}


class Deaths:
    """What has to die, and what has died already.

    Args:
        folder: Holds a file for each death that has happened.
        wanted: Names of deaths.
    """

    def __init__(self, folder: str, wanted: Sequence[str]) -> None:
        self._folder = Path(folder)
        self._wanted = tuple(wanted)

    def due(self, name: str) -> bool:
        """Whether this is to happen now; then it has happened."""
        if name not in self._wanted:
            return False
        try:
            (self._folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def wait_for_brokers(self) -> None:
        """Where it is wanted: let the test do something to the brokers, and go on when it is through."""
        if self.due("brokers"):
            while not (self._folder / "brokers are back").exists():
                time.sleep(0.05)


class DyingStreamWriter(KclientStreamWriter):
    """The sink, and what dies in it."""

    deaths: Deaths

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Any:
        """Each of these has left an open transaction of which the driver hears nothing."""
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 2 and self.deaths.due("twin"):
            batches = list(iterator)
            super().write(iter(batches))  # as a speculative attempt that is as fast, and loses
            iterator = iter(batches)
        outcome = super().write(iterator)
        assert isinstance(outcome, TaskOutcome)
        match context.partitionId():
            case 0 if self.deaths.due("worker"):
                os._exit(1)
            case 1 if self.deaths.due("executor"):
                os.kill(java(), signal.SIGKILL)
                time.sleep(60)
        return outcome

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """A driver that dies before, amid or after the ends of the transactions."""
        self.deaths.wait_for_brokers()
        if self.deaths.due("before"):
            self._die()
        if self.deaths.due("amid"):
            commit_all = open_transactions.commit_open

            def commit_one(producer: Any, transactions: Any, *, timeout: float) -> Any:
                failed = commit_all(producer, transactions[:1], timeout=timeout)
                assert failed == {}
                self._die()

            open_transactions.commit_open = commit_one
        super().commit(messages, batchId)
        if self.deaths.due("after"):
            self._die()

    def _die(self) -> None:
        os.kill(java(), signal.SIGKILL)
        os._exit(1)


class DyingSource(KclientDataSource):
    """The data source, under another name and with the option `deaths`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        told = json.loads(self.options.pop("deaths"))
        self._deaths = Deaths(told["folder"], told["wanted"])

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        found = super().streamWriter(schema, overwrite)
        found.__class__ = DyingStreamWriter
        assert isinstance(found, DyingStreamWriter)
        found.deaths = self._deaths
        return found


def java() -> int:
    """The Java process that this Python process belongs to: an executor's, or the driver's."""
    process = os.getpid()
    while True:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        if Path(f"/proc/{process}/comm").read_text().strip() == "java":
            return process


def start(
    bootstrap: str, source: str, target: str, folder: Path, wanted: Sequence[str], *, master: str = LOCAL
) -> subprocess.Popen[str]:
    """Run the query as a process, in its own group; it ends with everything copied, or dies.

    Args:
        bootstrap: The brokers.
        source: The topic to read.
        target: The topic to write.
        folder: Of its checkpoint, and of what has died.
        wanted: Deaths: "worker", "executor", "twin", "before", "amid", "after"; "brokers" only waits.
        master: Where Spark runs.
    """
    (folder / "deaths").mkdir(exist_ok=True)
    told = json.dumps({"folder": str(folder / "deaths"), "wanted": list(wanted)})
    command = [sys.executable, "-m", "tests.spark_deaths", bootstrap, source, target, str(folder), told, master]
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable},
            start_new_session=True,
            text=True,
        )


def main(bootstrap: str, source: str, target: str, folder: str, deaths: str, master: str) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("kclient deaths")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(DyingSource)
    session.dataSource.register(KclientDataSource)
    frame = (
        session.readStream.format("kclient")
        .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"})
        .option("maxOffsetsPerTrigger", "20")
        .load()
    )
    query = (
        frame.select("key", "value")
        .writeStream.format("dying")
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": target, "deaths": deaths})
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
