"""Apache Kafka's jars, resolved through Maven once and kept below the project's cache folder."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

KAFKA_4 = "4.3.1"
KAFKA_3 = "3.9.1"
CLIENTS_OF_OLD = ("0.9.0.1", "0.10.2.2")
"""Java clients that know message format v0 alone, and v1."""
ROCKSDB = {KAFKA_4: "10.1.3", KAFKA_3: "7.9.2"}
"""The release of RocksDB that Kafka Streams of each Kafka was published with."""
LOG4J = {KAFKA_4: "2.25.4"}
"""The release of Log4j that is among the jars of each Kafka."""
SPARK_CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
"""Spark's own connector, the newest that is released, and what it needs beyond Spark's own jars."""

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("KCLIENT_TEST_CACHE", ROOT / ".cache"))


def missing_tools() -> list[str]:
    """The programs that the Java side of the tests needs and that are not on PATH."""
    return [name for name in ("java", "mvn") if shutil.which(name) is None]


def kafka_jars(version: str) -> Path:
    """The folder with every jar of that Kafka release; resolved with Maven when it is not there yet."""
    return _resolved(CACHE / "kafka" / version, "pom.xml", {"kafka.version": version})


def streams_jars(version: str) -> Path:
    """The folder with what Kafka Streams of that release needs beside `kafka_jars`: for Linux on x86-64."""
    return _resolved(
        CACHE / "streams" / version, "streams.xml", {"kafka.version": version, "rocksdb.version": ROCKSDB[version]}
    )


def connect_jars(version: str) -> Path:
    """The folder with Connect's file connectors and MirrorMaker of that release; the rest is in `kafka_jars`."""
    return _resolved(
        CACHE / "connect" / version, "connect.xml", {"kafka.version": version, "log4j.version": LOG4J[version]}
    )


def client_jars(version: str) -> Path:
    """The folder with the Java client of that release, and what it needs."""
    return _resolved(CACHE / "clients" / version, "clients.xml", {"kafka.version": version})


def _resolved(folder: Path, project: str, versions: dict[str, str]) -> Path:
    """The folder with the jars of a project file beside this package's Java programs, which Maven fills once."""
    done = folder / ".complete"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # tests in other processes may want them, too
            if not done.exists():
                _copy_dependencies(project, versions, folder)
                done.touch()
    return folder


def spark_connector_jars() -> list[Path]:
    """The jars of `SPARK_CONNECTOR`, resolved with Maven when they are not there yet."""
    folder = CACHE / "spark-kafka-4.2.0"
    for coordinates in SPARK_CONNECTOR:
        group, artifact, version = coordinates.split(":")
        if not (folder / f"{artifact}-{version}.jar").exists():
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={group}:{artifact}:{version}"]
            subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True, cwd=ROOT)
    return sorted(folder.glob("*.jar"))


def kafka_clients_jar(version: str) -> Path:
    """The `kafka-clients` jar of that release: its `common/message/*.json` are the protocol's schemas."""
    return kafka_jars(version) / f"kafka-clients-{version}.jar"


def _copy_dependencies(project: str, versions: dict[str, str], folder: Path) -> None:
    command = [
        "mvn",
        "--quiet",
        "--batch-mode",
        "-f",
        str(ROOT / "tests" / "java" / project),
        *(f"-D{name}={version}" for name, version in versions.items()),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={folder}",
        "-DincludeScope=runtime",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"Maven could not resolve {project} with {versions}:\n{result.stdout}\n{result.stderr}")


if __name__ == "__main__":
    for kafka_version in (KAFKA_4, KAFKA_3):
        kafka_jars(kafka_version)
        streams_jars(kafka_version)
    for client_version in CLIENTS_OF_OLD:
        client_jars(client_version)
