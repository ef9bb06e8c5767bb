"""A mirror without Spark, whose process dies at each request in turn, and at random, and goes on again.

It is run as a process, which forks one for each run, so that a death is one. Tasks run in the run's own process, and
commit after each piece of a few records.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kclient.spark.pipelines import replay_tasks
from kclient.spark.pipelines.mirror import MirrorRun
from kclient.spark.pipelines.mirror_planning import checked_mirror
from kclient.spark.pipelines.mirror_source import MIRROR
from kclient.spark.pipelines.replay import checked_settings
from kclient.spark.pipelines.replay_tasks import PartitionReceipt, Replayed, ReplayJob
from kclient.sync import Admin, Consumer, Producer
from tests.replay_deaths import DIED, arm, carry_out_here, deaths, deaths_of, forked

ARGUMENTS: dict[str, Any] = {
    "topics": (), "pattern": None, "rename": None, "prefix": "", "copy_settings": True, "fail_on_data_loss": True,
    "restart_recreated": False, "groups": None, "max_offsets": None, "records_per_second": None,
    "bytes_per_second": None,
}  # fmt: skip


class MirrorHere(MirrorRun):
    """Tasks run in this process, one after the other."""

    def carry_out(self, job: ReplayJob, todo: Sequence[Replayed], look: Callable[[], None]) -> list[PartitionReceipt]:
        return carry_out_here(job, todo)


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


def start(source: str, target: str, topic: str, *seed: str, timeout: float) -> int:
    """Run this as a process; returns how many runs died."""
    return deaths_of("tests.mirror_deaths", source, target, topic, *seed, timeout=timeout)


def main(source: str, target: str, topic: str, seed: str | None = None) -> None:
    assert (Admin, Consumer, Producer) is not None  # imported once, not by each process that is forked
    died = 0
    for death in deaths(seed):
        code = forked(run, source, target, topic, death)
        assert code in {0, DIED}, f"a run that was to die at {death} failed"
        died += code == DIED
    while run_here(source, target, topics=[topic], prefix="m-", groups=f"g-{topic}").records:
        pass
    print(json.dumps(died))


if __name__ == "__main__":
    main(*sys.argv[1:])
