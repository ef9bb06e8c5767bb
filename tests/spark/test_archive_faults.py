"""The pipeline `archive` where something goes wrong: workers that share no disk, interruptions, a full disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import pytest

import kclient
from kclient.spark import ArchiveError, archive
from tests.conftest import require_java
from tests.spark.archives import archived, create, expected, fill, fill_many, staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PRELUDE = """
import os, sys
from pyspark.sql import SparkSession
from kclient.errors import KafkaError
from kclient.spark import archive

def session(master, **settings):
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), value)
    return builder.getOrCreate()

def attempt(spark, folder, broker, topic):
    try:
        print("archived", archive(spark, folder, {"bootstrap.servers": broker}, topics=[topic]).records)
    except KafkaError as error:
        print(type(error).__name__, error)
"""


def run_script(text: str, *arguments: str, prefix: tuple[str, ...] = (), **environment: str) -> list[str]:
    """Runs a program with a Spark of its own; returns the lines that it printed."""
    require_java()
    done = subprocess.run(
        [*prefix, sys.executable, "-c", PRELUDE + textwrap.dedent(text), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def require_namespaces() -> None:
    """Skip visibly where this user may make no private mounts; under CI=true fail instead."""
    tried = (
        subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False) if shutil.which("unshare") else None
    )
    if tried is None or tried.returncode != 0:
        message = "needs unshare -m, which takes root"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)


@pytest.fixture
def private_java(tmp_path: Path) -> tuple[Path, Path]:
    """A JAVA_HOME whose executors see an empty disk where the driver sees a folder, and that folder."""
    require_java()
    require_namespaces()
    java = shutil.which("java")
    assert java is not None
    hidden, home = tmp_path / "hidden", tmp_path / "java"
    hidden.mkdir()
    wrapper = home / "bin/java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        for word in "$@"; do
            if [ "$word" = org.apache.spark.executor.CoarseGrainedExecutorBackend ]; then
                exec unshare -m sh -c 'mount -t tmpfs tmpfs {hidden} && exec {java} "$@"' sh "$@"
            fi
        done
        exec {java} "$@"
        """)
    )
    wrapper.chmod(0o755)
    return home, hidden


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """Spark's own files under another name, so that the workers of a local cluster leave theirs here."""
    import pyspark

    home = tmp_path / "spark"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    return home


def test_executors_that_do_not_share_the_folder(
    gateway: str, topic: str, tmp_path: Path, private_java: tuple[Path, Path], spark_home: Path
) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(50))
    java, hidden = private_java
    script = """
        spark = session("local-cluster[2,1,1024]")
        for folder in sys.argv[1:3]:
            attempt(spark, folder, sys.argv[3], sys.argv[4])
    """
    arguments = (str(hidden / "archive"), str(tmp_path / "shared"), gateway, topic)
    first, second = run_script(script, *arguments, JAVA_HOME=str(java), SPARK_HOME=str(spark_home))
    assert first.startswith("ArchiveError a worker on ")
    assert "driver and workers must share the archive's folder" in first
    assert staged(hidden / "archive") == []
    assert list((hidden / "archive/_kclient/manifests").iterdir()) == []
    assert second == "archived 50"
    assert archived(tmp_path / "shared") == expected(topic, range(50))


def test_workers_whose_python_lacks_a_package(gateway: str, topic: str, tmp_path: Path) -> None:
    """As where they run the system's `python3`, and find kclient on the driver's path, or not at all."""
    create(gateway, topic)
    fill(gateway, topic, range(5))
    script = """
        for python in sys.argv[4:]:
            os.environ["PYSPARK_PYTHON"] = python
            spark = session("local[1]")
            attempt(spark, *sys.argv[1:4])
            spark.stop()
    """
    pythons = [str(python_without(package, tmp_path / package)) for package in ("crc32c", "kclient")]
    dependency, ours = run_script(script, str(tmp_path / "out"), gateway, topic, *pythons)
    begin = "ArchiveError Spark's workers run a Python that lacks a package: "
    assert dependency.startswith(f"{begin}kclient.spark in {sys.executable} (PYSPARK_PYTHON or spark.pyspark.python")
    assert dependency.endswith("needs the package crc32c: pip install 'htp-kclient[spark]'")
    assert ours.startswith(f"{begin}No module named 'kclient'; pip install 'htp-kclient[spark]' for that Python, or")


def python_without(package: str, folder: Path) -> Path:
    """An interpreter that has what this one has, but for a package."""
    packages, python = folder / "packages", folder / "python"
    packages.mkdir(parents=True)
    ours = Path(kclient.__file__).parent
    for path in [*Path(sysconfig.get_path("purelib")).iterdir(), ours]:
        if path.suffix != ".pth" and not path.name.startswith(package):
            (packages / path.name).symlink_to(path)
    python.write_text(f'#!/bin/sh\ncd / && PYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


SMALL_DISK = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'


def test_a_disk_that_is_full_while_tasks_write(gateway: str, topic: str, tmp_path: Path) -> None:
    require_namespaces()
    create(gateway, topic)
    fill_many(gateway, topic, 20_000)
    small = tmp_path / "small"
    small.mkdir()
    script = """
        spark = session("local[2]", spark_sql_parquet_compression_codec="none")
        attempt(spark, sys.argv[1], sys.argv[2], sys.argv[3])
        print(sorted(os.listdir(os.path.join(sys.argv[1], "_kclient/staging"))))
        print(sorted(os.listdir(os.path.join(sys.argv[1], "_kclient/manifests"))))
    """
    prefix = ("unshare", "-m", "sh", "-c", SMALL_DISK, str(small))
    first, *left = run_script(script, str(small), gateway, topic, prefix=prefix)
    assert first.startswith("ArchiveError a task failed: OSError: ")
    assert "No space left on device" in first
    assert left == ["[]", "[]"]


FAILS_ONCE = """
import importlib.util, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name != "kclient.spark.pipelines.parquet_files":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            finish = module.ParquetFiles._finish
            def failing(files):
                finish(files)
                from pyspark import TaskContext
                context = TaskContext.get()
                if context is not None and context.attemptNumber() == 0 and files.receipts:
                    raise RuntimeError("the first attempt fails when it has written")
            module.ParquetFiles._finish = failing
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


def test_what_a_failed_attempt_wrote_does_not_count(gateway: str, topic: str, tmp_path: Path) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(100))
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches/sitecustomize.py").write_text(FAILS_ONCE)
    script = 'attempt(session("local[2,3]"), *sys.argv[1:])'
    (first,) = run_script(script, str(tmp_path / "out"), gateway, topic, PYTHONPATH=str(tmp_path / "patches"))
    assert first == "archived 100"
    assert archived(tmp_path / "out") == expected(topic, range(100))


class Interruption(BaseException):
    """What a signal raises."""


@contextlib.contextmanager
def interrupted_when_it_runs(spark: SparkSession) -> Iterator[None]:
    """A signal comes as soon as Spark is at work."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interruption

    over = threading.Event()

    def press() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not over.wait(0.02):
            if tracker.getActiveJobsIds():
                os.kill(os.getpid(), signal.SIGUSR1)
                return

    before = signal.signal(signal.SIGUSR1, interrupt)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        yield
    finally:
        over.set()
        presser.join()
        signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_run_ends_its_job_and_leaves_nothing(
    spark: SparkSession, gateway: str, topic: str, tmp_path: Path
) -> None:
    create(gateway, topic)
    fill_many(gateway, topic, 100_000)
    settings = {"bootstrap.servers": gateway}
    with pytest.raises(Interruption), interrupted_when_it_runs(spark):
        archive(spark, tmp_path / "out", settings, topics=[topic])
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []
    assert staged(tmp_path / "out") == []
    assert archive(spark, tmp_path / "out", settings, topics=[topic]).records == 100_000


def test_the_callers_job_group_stays_his(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(4))
    context = spark.sparkContext
    context.setJobGroup("mine", "my own work", interruptOnCancel=True)
    names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    try:
        before = [context.getLocalProperty(name) for name in names]
        archive(spark, tmp_path / "out", {"bootstrap.servers": gateway}, topics=[topic])
        assert [context.getLocalProperty(name) for name in names] == before
        spark.range(3).count()
        assert len(context.statusTracker().getJobIdsForGroup("mine")) >= 1
    finally:
        for name in names:
            context.setLocalProperty(name, None)  # type: ignore[arg-type]


def test_a_second_run_at_the_same_time_is_refused(
    spark: SparkSession, gateway: str, topic: str, tmp_path: Path
) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(10))
    settings = {"bootstrap.servers": gateway}
    failures: list[Exception] = []

    def second(step: str, done: int, total: int) -> None:
        if step == "publish" and not failures:
            try:
                archive(spark, tmp_path / "out", settings, topics=[topic])
            except ArchiveError as error:
                failures.append(error)

    archive(spark, tmp_path / "out", settings, topics=[topic], progress=second)
    assert [str(failure).split(" (")[0] for failure in failures] == [f"another run archives into {tmp_path / 'out'}"]
    assert archived(tmp_path / "out") == expected(topic, range(10))


def test_a_file_that_vanishes_while_it_is_staged(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    """As when the executor that held it is lost."""
    create(gateway, topic)
    fill(gateway, topic, range(10))

    def lose(step: str, done: int, total: int) -> None:
        if step == "write" and done == total:
            for path in (tmp_path / "out/_kclient/staging").rglob("*.parquet"):
                path.unlink()

    settings = {"bootstrap.servers": gateway}
    with pytest.raises(ArchiveError, match=r"wrote \d files with 10 records, and \d of them are not in"):
        archive(spark, tmp_path / "out", settings, topics=[topic], progress=lose)
    assert archive(spark, tmp_path / "out", settings, topics=[topic]).records == 10
    assert archived(tmp_path / "out") == expected(topic, range(10))


def test_hadoops_default_file_system_plays_no_part(
    spark: SparkSession, gateway: str, topic: str, tmp_path: Path
) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(10))
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    try:
        archive(spark, (tmp_path / "with space").as_uri(), {"bootstrap.servers": gateway}, topics=[topic])
    finally:
        hadoop.set("fs.defaultFS", before)
    assert archived(tmp_path / "with space") == expected(topic, range(10))
