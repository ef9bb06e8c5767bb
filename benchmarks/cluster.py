"""Several gateways on one directory: hand-over, take-over, rates, what the processors do, new topics, changes.

`python -m benchmarks.cluster [TIMES [TOPICS [PARTITIONS [CHANGES]]]]`: so many hand-overs and take-overs (50), so many
topics that are created at three gateways (1,000), so many partitions over three (30,000), so many topics that are
created, changed, grown and deleted at one of three while the others are asked (200).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import psutil
from rich.progress import track
from rich.table import Table

from benchmarks import raw_client
from benchmarks.harness import alternating, console, machine, number, report
from benchmarks.raw_client import RawClient
from kclient.sync import Admin, Producer
from kclient.types import TopicPartition
from tests.change_delays import measure
from tests.gateway_process import GatewayProcess

PARTITIONS: Final = 16
EACH: Final = 100
"""Partitions of a topic, where there are very many."""
RECORDS: Final = 20_000
VALUE: Final = b"x" * 1000
SHARED: Final = [f"shared-{index}" for index in range(4)]
RAW_RECORDS: Final = 3_200_000
RAW_SIZE: Final = 100
RUNS: Final = 5
CPU_RUNS: Final = 20
"""Where the processors' time counts: it doubles once the kernel begins to write its cache back."""


@contextmanager
def gateways(number: int) -> Iterator[list[GatewayProcess]]:
    """So many processes over one directory, which know each other."""
    with tempfile.TemporaryDirectory() as folder:
        made = [
            GatewayProcess(Path(folder) / "data", config={"node.id": str(node_id)}) for node_id in range(1, number + 1)
        ]
        try:
            for each in made:
                each.start()
            for each in made:
                wait_for(lambda each=each: len(nodes(each)) == number)
            yield made
        finally:
            for each in made:
                each.stop()


def wait_for(true: Callable[[], bool]) -> None:
    """Until something is so."""
    end = time.perf_counter() + 120
    while not true():
        if time.perf_counter() > end:
            raise TimeoutError("the gateways do not come to know each other")
        time.sleep(0.005)


def nodes(gateway: GatewayProcess) -> list[int]:
    """The gateways that one tells of."""
    with Admin(bootstrap_servers=gateway.bootstrap) as admin:
        return [node.id for node in admin.describe_cluster().nodes]


def leads_some(admin: Admin, node_id: int) -> bool:
    """Whether a gateway leads something, as others tell."""
    found = admin.describe_topics(["t"])["t"].partitions
    return any(info.leader is not None and info.leader.id == node_id for info in found)


def moves(times: int) -> None:
    """The longest that a record to each partition waits for its acknowledgement while a gateway ends."""
    found: dict[str, list[float]] = {"hand-over (SIGTERM)": [], "take-over (SIGKILL)": []}
    with gateways(2) as (one, other), Admin(bootstrap_servers=one.bootstrap) as admin:
        admin.create_topic("t", PARTITIONS)
        with Producer(bootstrap_servers=one.bootstrap, linger_ms=0, retry_backoff_ms=10) as producer:
            for _ in track(range(times), "moving", console=console, transient=True):
                for what, kill in (("hand-over (SIGTERM)", False), ("take-over (SIGKILL)", True)):
                    wait_for(lambda: leads_some(admin, 2))
                    _into_each(producer)
                    ending = threading.Thread(target=other.stop, kwargs={"kill": kill})
                    ending.start()
                    rounds = []
                    while ending.is_alive():
                        rounds.append(_into_each(producer))
                    found[what].append(max([*rounds, _into_each(producer)]))
                    ending.join()
                    other.start()
    table = Table(title="The longest that producers wait", caption=f"{times} times each · {machine()}")
    table.add_column("what")
    for heading in ("median s", "worst s"):
        table.add_column(heading, justify="right")
    for what, seconds in found.items():
        table.add_row(what, number(statistics.median(seconds)), number(max(seconds)))
    console.print(table)


def _into_each(producer: Producer) -> float:
    """Seconds until a record to each partition is acknowledged."""
    began = time.perf_counter()
    sent = [producer.send("t", b"1", partition=index) for index in range(PARTITIONS)]
    for each in sent:
        each.result(60)
    return time.perf_counter() - began


def two_against_one() -> None:
    """Records a second into one process, and into two, of the same producer."""
    with gateways(1) as alone, gateways(2) as both:
        contenders: dict[str, Callable[[], float]] = {}
        for name, some in (("two processes", both), ("one process", alone)):
            with Admin(bootstrap_servers=some[0].bootstrap) as admin:
                admin.create_topic("t", PARTITIONS)

            def send(bootstrap: str = some[0].bootstrap) -> float:
                with Producer(bootstrap_servers=bootstrap, linger_ms=5) as producer:
                    began = time.perf_counter()
                    for index in range(PARTITIONS):
                        producer.send_batch("t", [VALUE] * (RECORDS // PARTITIONS), partition=index)
                    producer.flush()
                    return RECORDS / (time.perf_counter() - began)

            contenders[name] = send
        report(f"Records of {len(VALUE)} bytes into {PARTITIONS} partitions", alternating(contenders, RUNS))


def processors() -> None:
    """CPU time for a megabyte, of one process, and of two and four that share the same requests."""
    with gateways(1) as one, gateways(2) as two, gateways(4) as four:
        clusters = {"four processes": four, "two processes": two, "one process": one}
        for each in clusters.values():
            _spread(each)
        into = {name: partial(_cpu_per_mb, each, RawClient.produce) for name, each in clusters.items()}
        report("CPU time of all gateways, in", alternating(into, CPU_RUNS), "ms/MB")
        out = {name: partial(_cpu_per_mb, each, RawClient.fetch) for name, each in clusters.items()}
        report("CPU time of all gateways, out", alternating(out, CPU_RUNS), "ms/MB")


def _spread(cluster: Sequence[GatewayProcess]) -> None:
    """Make topics each of which is led by one gateway, as many by each."""
    leaders = {name: index % len(cluster) + 1 for index, name in enumerate(SHARED)}
    with Admin(bootstrap_servers=cluster[0].bootstrap) as admin:
        for name, node_id in leaders.items():
            admin.create_topic(name, raw_client.PARTITIONS)
            wanted = {TopicPartition(name, index): [node_id] for index in range(raw_client.PARTITIONS)}
            admin.alter_partition_reassignments(wanted)
        wait_for(lambda: all(_leads_all(admin, name, node_id) for name, node_id in leaders.items()))


def _cpu_per_mb(cluster: Sequence[GatewayProcess], work: Callable[[RawClient, str, int], object]) -> float:
    """Milliseconds, for the same requests to whoever leads their topics."""
    before = sum(_cpu_seconds(each.pid) for each in cluster)
    for index, name in enumerate(SHARED):
        with closing(RawClient(cluster[index % len(cluster)].port)) as client:
            work(client, name, RAW_RECORDS // len(SHARED))
    taken = sum(_cpu_seconds(each.pid) for each in cluster) - before
    return taken * 1000 / (RAW_RECORDS * RAW_SIZE / 1e6)


def _cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process: by its own clock on Linux, since the files of `/proc` count in 10 ms."""
    if sys.platform.startswith("linux"):
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3), which Python does not offer
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def creations(topics: int) -> None:
    """Topics are created at three gateways; seconds until the last one that hears of all has done so."""
    with gateways(3) as some:
        admins = [Admin(bootstrap_servers=each.bootstrap) for each in some]
        try:
            began = time.perf_counter()
            for index in track(range(topics), "creating", console=console, transient=True):
                admins[index % 3].create_topic(f"t-{index}", 1)
            created = time.perf_counter()
            last = [f"t-{index}" for index in range(topics)]
            for admin in admins:
                wait_for(lambda admin=admin: len(admin.list_topics()) == topics)
            known = time.perf_counter()
            told = [
                {TopicPartition(i.topic, i.partition): i.leader for d in admin.describe_topics(last).values()
                 for i in d.partitions}
                for admin in admins
            ]  # fmt: skip
            same = all({tp: n and n.id for tp, n in each.items()} == {tp: n and n.id for tp, n in told[0].items()}
                       for each in told)  # fmt: skip
        finally:
            for admin in admins:
                admin.close()
    console.print(
        f"{topics} creations at three gateways: {created - began:.1f} s; all gateways list all of them "
        f"{known - created:.2f} s after the last, and name {'the same' if same else 'OTHER'} leaders"
    )


def changes(times: int) -> None:
    """A change is acknowledged at one of three gateways: how long until both others tell of it."""
    with gateways(3) as some:
        found = anyio.run(measure, [each.bootstrap for each in some], times)
    table = Table(title="From a change at one of three gateways until both others tell of it", caption=machine())
    table.add_column("a topic is")
    for heading in ("median ms", "99th percentile ms", "worst ms"):
        table.add_column(heading, justify="right")
    for what, seconds in found.items():
        ms = sorted(1000 * each for each in seconds)
        table.add_row(what, number(statistics.median(ms)), number(ms[max(len(ms) * 99 // 100 - 1, 0)]), number(ms[-1]))
    console.print(table)


def many(partitions: int) -> None:
    """Very many partitions over three gateways: memory, one that is killed, and one that starts again."""
    names = [f"t-{index}" for index in range(partitions // EACH)]
    with gateways(3) as some, Admin(bootstrap_servers=some[0].bootstrap) as admin:
        for name in track(names, "creating", console=console, transient=True):
            admin.create_topic(name, EACH)
        memory = [psutil.Process(each.pid).memory_full_info().uss / 1e6 for each in some]
        began = time.perf_counter()
        some[2].stop(kill=True)
        wait_for(lambda: not _leads(admin, names, 3))
        taken_over = time.perf_counter() - began
        some[2].start()
        wait_for(lambda: _leads(admin, names, 3))
        table = Table(title=f"{len(names) * EACH} partitions over three gateways", caption=machine())
        table.add_column("what")
        table.add_column("", justify="right")
        table.add_row("memory of each, MB", " ".join(map(number, memory)))
        table.add_row("one is killed: until others lead all, s", number(taken_over))
        table.add_row("it starts again: until it listens, s", number(some[2].startup_seconds))
    console.print(table)


def _leads(admin: Admin, names: Sequence[str], node_id: int) -> bool:
    found = admin.describe_topics(names)
    return any(i.leader is not None and i.leader.id == node_id for name in names for i in found[name].partitions)


def _leads_all(admin: Admin, name: str, node_id: int) -> bool:
    partitions = admin.describe_topics([name])[name].partitions
    return all(each.leader is not None and each.leader.id == node_id for each in partitions)


def main(times: int = 50, topics: int = 1000, partitions: int = 30_000, changed: int = 200) -> None:
    moves(times)
    two_against_one()
    processors()
    creations(topics)
    changes(changed)
    many(partitions)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
