"""Several `kclient gateway` processes over one directory: what clients see when one is killed, stopped or closed."""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import psutil
import pytest

from kclient.errors import UnknownTopicOrPartitionError
from kclient.sync import Admin, Producer
from tests.change_delays import measure
from tests.gateway_process import GatewayProcess
from tests.numbered_load import NumberedLoad, read_numbers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PARTITIONS = 32
"""So many that each gateway leads some: where they go is random, as the ids of topics are."""


def gateway_of(data: Path, node_id: int) -> GatewayProcess:
    return GatewayProcess(data, config={"node.id": str(node_id)})


@contextmanager
def gateways(data: Path, *node_ids: int) -> Iterator[list[GatewayProcess]]:
    """So many gateways over one directory, and a topic."""
    found = [gateway_of(data, node_id) for node_id in node_ids]
    try:
        for each in found:
            each.start()
        with Admin(bootstrap_servers=found[0].bootstrap) as admin:
            admin.create_topic("t", partitions=PARTITIONS)
        yield found
    finally:
        for each in found:
            each.stop()


def servers(found: list[GatewayProcess]) -> str:
    return ",".join(each.bootstrap for each in found)


def leaders(bootstrap: str) -> set[int]:
    """The numbers of the gateways that lead the topic's partitions."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        try:
            found = admin.describe_topics(["t"])["t"].partitions
        except UnknownTopicOrPartitionError:  # it was created at another one a moment ago
            return set()
        return {partition.leader.id for partition in found if partition.leader}


def wait_for_leaders(bootstrap: str, *node_ids: int) -> None:
    until = time.monotonic() + 60
    while leaders(bootstrap) != set(node_ids):
        assert time.monotonic() < until, f"led by {leaders(bootstrap)}"
        time.sleep(0.05)


def wait_for_nodes(bootstrap: str, number: int) -> None:
    """Until so many gateways are there."""
    until = time.monotonic() + 60
    while True:
        with Admin(bootstrap_servers=bootstrap) as admin:
            if len(admin.describe_cluster().nodes) == number:
                return
        assert time.monotonic() < until
        time.sleep(0.05)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_they_share_the_partitions_and_one_that_is_closed_hands_over(tmp_path: Path) -> None:
    with gateways(tmp_path / "data", 1, 2) as (one, two):
        wait_for_leaders(one.bootstrap, 1, 2)
        with NumberedLoad(servers([one, two]), "t", partitions=PARTITIONS, size=10) as load:
            load.wait_for(2000)
            two.stop()
            wait_for_leaders(one.bootstrap, 1)
            began = time.monotonic()
            load.wait_for(4000)  # more than may be on its way: all partitions go on
            print(f"after a hand-over: {time.monotonic() - began:.2f} s")
            two.start()
            wait_for_leaders(one.bootstrap, 1, 2)
            load.wait_for(4000)
        load.check(read_numbers(servers([one, two]), "t", PARTITIONS))


def test_one_that_is_killed_is_followed(tmp_path: Path) -> None:
    with gateways(tmp_path / "data", 1, 2) as (one, two):
        wait_for_leaders(one.bootstrap, 1, 2)
        with NumberedLoad(servers([one, two]), "t", partitions=PARTITIONS, size=10) as load:
            load.wait_for(2000)
            one.stop(kill=True)
            began = time.monotonic()
            wait_for_leaders(two.bootstrap, 2)
            load.wait_for(4000)
            print(f"after a kill: {time.monotonic() - began:.2f} s")
            one.start()
            wait_for_leaders(two.bootstrap, 1, 2)
            load.wait_for(4000)
        load.check(read_numbers(servers([one, two]), "t", PARTITIONS))


def stop_between_commits(process: GatewayProcess, data: Path) -> None:
    """SIGSTOP, but not amid a transaction of the manager's database: nobody could commit until it goes on."""
    while True:
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with closing(sqlite3.connect(data / "mgr" / "mgr.db", timeout=2, isolation_level=None)) as database:
                database.execute("BEGIN IMMEDIATE")
                database.execute("ROLLBACK")
            return
        except sqlite3.OperationalError:
            os.kill(process.pid, signal.SIGCONT)


def test_one_that_was_stopped_beyond_its_lease_writes_nothing_that_is_lost(tmp_path: Path) -> None:
    with gateways(tmp_path / "data", 1, 2) as (one, two):
        wait_for_leaders(one.bootstrap, 1, 2)
        with NumberedLoad(servers([one, two]), "t", partitions=PARTITIONS, size=10) as load:
            load.wait_for(2000)
            stop_between_commits(one, tmp_path / "data")
            try:
                wait_for_leaders(two.bootstrap, 2)
            finally:
                os.kill(one.pid, signal.SIGCONT)
            load.wait_for(4000)
        load.check(read_numbers(two.bootstrap, "t", PARTITIONS))


def test_a_number_is_one_process_s(tmp_path: Path) -> None:
    with gateways(tmp_path / "data", 1) as (one,):
        second = gateway_of(tmp_path / "data", 1)
        with pytest.raises(
            RuntimeError, match=f"node.id=1 in process {one.pid} serves the store: give this one another"
        ):
            second.start()


def test_processes_of_one_command(tmp_path: Path) -> None:
    """One line says where they listen; one that is killed is started again, and all end together."""
    first = GatewayProcess(tmp_path / "data", options=["--processes", "3"])
    first.start()
    try:
        ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", first.startup_line)]
        assert len(set(ports)) == 3
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic("t", partitions=PARTITIONS)
        wait_for_leaders(bootstrap, 1, 2, 3)
        with NumberedLoad(bootstrap, "t", partitions=PARTITIONS, size=10) as load:
            watching = psutil.Process(first.pid)
            for child in watching.children():
                load.wait_for(1000)
                child.kill()
                child.wait(10)
                wait_until(lambda: len(watching.children()) == 3)
                wait_for_nodes(bootstrap, 3)
            load.wait_for(4000)
        load.check(read_numbers(bootstrap, "t", PARTITIONS))
    finally:
        assert first.stop() == 0
    assert any("[1] this process was ended by SIGKILL" in line for line in first.stderr)
    assert not any("Traceback" in line for line in first.stderr)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of another process are Linux's")
def test_one_that_cannot_be_started_again_leaves_the_others_alone(tmp_path: Path) -> None:
    """As for want of descriptors, or of memory: it is tried again."""
    first = GatewayProcess(tmp_path / "data", options=["--processes", "2"])
    first.start()
    try:
        watching = psutil.Process(first.pid)
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in re.findall(r"127\.0\.0\.1:(\d+)", first.startup_line))
        limits = watching.rlimit(psutil.RLIMIT_NOFILE)
        watching.rlimit(psutil.RLIMIT_NOFILE, (8, limits[1]))
        child = watching.children()[0]
        child.kill()
        child.wait(10)
        wait_for_nodes(bootstrap, 1)
        wait_until(lambda: any("this process could not be started (" in line for line in first.stderr))
        watching.rlimit(psutil.RLIMIT_NOFILE, limits)
        wait_for_nodes(bootstrap, 2)
    finally:
        assert first.stop() == 0


def test_processes_run_what_the_command_runs(tmp_path: Path) -> None:
    """Not what lies in the working directory."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "random.py").write_text("raise SystemExit('another module')")
    command = [sys.executable, "-P", "-m", "kclient", "gateway", "--data", str(tmp_path / "data")]
    command += ["--listen", "127.0.0.1:0", "--processes", "2"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path / "here")
    try:
        assert first.stdout is not None
        assert "2 processes" in first.stdout.readline()
    finally:
        first.terminate()
        _, errors = first.communicate(timeout=30)
    assert (first.returncode, errors) == (0, "")


def test_processes_end_with_the_one_that_watches_them(tmp_path: Path) -> None:
    first = GatewayProcess(tmp_path / "data", options=["--processes", "2"])
    first.start()
    children = psutil.Process(first.pid).children()
    assert len(children) == 2
    first.stop(kill=True)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


def test_processes_that_cannot_start(tmp_path: Path) -> None:
    with gateways(tmp_path / "data", 2) as (one,):
        second = GatewayProcess(tmp_path / "data", options=["--processes", "2"])
        with pytest.raises(RuntimeError, match=r"\[2\] kclient: .*node.id=2 in process"):
            second.start()
        with Admin(bootstrap_servers=one.bootstrap) as admin:  # it is not disturbed
            assert [node.id for node in admin.describe_cluster().nodes] == [2]


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (["--processes", "0"], "--processes is a number from 1 to 64"),
        (["--processes", "3", "--listen", "127.0.0.1:65534"], "leaves no ports for 3 processes"),
        (["--processes", "2", "--metrics", "127.0.0.1:65535"], "--metrics=127.0.0.1:65535 leaves no ports"),
    ],
)
def test_what_processes_cannot_be_given(tmp_path: Path, options: list[str], refusal: str) -> None:
    command = [sys.executable, "-m", "kclient", "gateway", "--data", str(tmp_path / "data"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert refusal in done.stderr
    assert not (tmp_path / "data").exists()


def test_killed_stopped_and_restarted_at_random(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Three gateways, one of which is always in trouble: nothing is lost, doubled or out of order."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with gateways(tmp_path / "data", 1, 2, 3) as found:
        wait_for_leaders(found[0].bootstrap, 1, 2, 3)
        with NumberedLoad(servers(found), "t", partitions=PARTITIONS, size=10) as load:
            for _ in range(pytestconfig.getoption("kills") // 2):
                load.wait_for(chance.randrange(1, 3000))
                one = chance.choice(found)
                what = chance.choice(["kill", "close", "stop"])
                if what == "stop":  # also for longer than the others wait until they claim what it leads
                    os.kill(one.pid, signal.SIGSTOP)
                    time.sleep(chance.choice([0.1, 1.0, 6.0]))
                    os.kill(one.pid, signal.SIGCONT)
                else:
                    one.stop(kill=what == "kill")
                    time.sleep(chance.choice([0.0, 0.5, 2.0]))
                    one.start()
            load.wait_for(4000)
        load.check(read_numbers(servers(found), "t", PARTITIONS))


def test_changes_are_seen_by_the_others_soon(tmp_path: Path) -> None:
    """A topic is created, changed, grown and deleted at one gateway: the others tell their clients of it."""
    with gateways(tmp_path / "data", 1, 2, 3) as found:
        for each in found:
            wait_for_nodes(each.bootstrap, 3)
        delays = anyio.run(measure, [each.bootstrap for each in found], 12)
        told = {change: [round(1000 * each) for each in sorted(seconds)] for change, seconds in delays.items()}
        print(f"milliseconds until the others tell of a change: {told}")
        for change, seconds in delays.items():
            assert statistics.median(seconds) < 0.5, (change, told)  # 0.03, where nothing else runs


def test_topics_deleted_and_made_again_by_others(tmp_path: Path) -> None:
    """A topic shares nothing with its namesake, whichever process led the partitions of either."""
    with gateways(tmp_path / "data", 1, 2) as found:
        for turn in range(5):
            with Admin(bootstrap_servers=found[turn % 2].bootstrap) as admin:
                admin.create_topic("again", partitions=PARTITIONS)
            with Producer(bootstrap_servers=found[turn % 2].bootstrap) as producer:
                sent = [producer.send("again", b"%d" % turn, partition=place) for place in range(PARTITIONS)]
                assert [each.result(timeout=30).offset for each in sent] == [0] * PARTITIONS
            with Admin(bootstrap_servers=found[(turn + 1) % 2].bootstrap) as admin:
                admin.delete_topics(["again"])
        for each in found:
            assert not [line for line in each.stderr if "ERROR" in line or "Traceback" in line]
