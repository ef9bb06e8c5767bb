"""A mirror without Spark, whose process dies at each request in turn, and at random, and goes on again.

It is run as a process, which forks one for each run, so that a death is one. Tasks run in the run's own process, and
commit after each piece of a few records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from kclient.spark.pipelines import replay_tasks
from kclient.spark.pipelines.mirror import MirrorRun
from kclient.spark.pipelines.mirror_planning import checked_mirror
from kclient.spark.pipelines.mirror_source import MIRROR
from kclient.spark.pipelines.rate_limiter import Rate
from kclient.spark.pipelines.replay import checked_settings
from kclient.spark.pipelines.replay_planning import shares_of
from kclient.spark.pipelines.replay_tasks import PartitionReceipt, Replayed, Replaying, ReplayJob, receipt_of
from kclient.sync import Admin, Consumer, Producer
from tests.replay_deaths import DIED, arm, deaths

ARGUMENTS: dict[str, Any] = {
    "topics": (), "pattern": None, "rename": None, "prefix": "", "copy_settings": True, "fail_on_data_loss": True,
    "restart_recreated": False, "groups": None, "max_offsets": None, "records_per_second": None,
    "bytes_per_second": None,
}  # fmt: skip


class MirrorHere(MirrorRun):
    """Tasks run in this process, one after the other."""

    def carry_out(self, job: ReplayJob, todo: Sequence[Replayed], look: Callable[[], None]) -> list[PartitionReceipt]:
        shares = shares_of(todo, 1, Rate())
        numbers = pa.record_batch([pa.array(range(len(shares)), pa.int64())], ["id"])
        told = list(Replaying(job, shares).run(iter([numbers])))
        return [receipt_of(text) for batch in told for text in batch.column(0).to_pylist()]


def run_here(source: str, target: str, mirror_id: str | None = None, **given: Any) -> Any:
    """The summary of one run."""
    settings, asking = checked_settings({"bootstrap.servers": target, "linger.ms": "0"}, MIRROR)
    selection = checked_mirror({"bootstrap.servers": source}, **{**ARGUMENTS, **given})
    return MirrorHere(None, selection, settings, asking, mirror_id, None).run()


def run(source: str, target: str, topic: str, death: tuple[int, bool] | None) -> None:
    """One run, which dies at its so-manieth request that changes something, after or before that is carried out."""
    replay_tasks._TRANSACTION_S = 0.0
    if death is not None:
        arm(*death)
    run_here(source, target, topics=[topic], prefix="m-", groups=f"g-{topic}", max_offsets=40)


def forked(*arguments: Any) -> int:
    """The exit code of a process that makes a run."""
    child = os.fork()
    if child == 0:
        try:
            run(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"{arguments[-1]}: {code}", file=sys.stderr, flush=True)
    return code


def start(source: str, target: str, topic: str, *seed: str, timeout: float) -> int:
    """Run this as a process; returns how many runs died."""
    command = [sys.executable, "-m", "tests.mirror_deaths", source, target, topic, *seed]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, cwd=Path(__file__).parents[1], check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(json.loads(done.stdout.splitlines()[-1]))


def main(source: str, target: str, topic: str, seed: str | None = None) -> None:
    assert (Admin, Consumer, Producer) is not None  # imported once, not by each process that is forked
    died = 0
    for death in deaths(seed):
        code = forked(source, target, topic, death)
        assert code in {0, DIED}, f"a run that was to die at {death} failed"
        died += code == DIED
    while run_here(source, target, topics=[topic], prefix="m-", groups=f"g-{topic}").records:
        pass
    print(json.dumps(died))


if __name__ == "__main__":
    main(*sys.argv[1:])
