"""A replay without Spark, whose process dies at each request in turn, and at random, and goes on again.

It is run as a process, which forks one for each run, so that a death is one: nothing is closed, flushed or aborted.
Tasks run in the run's own process, and commit after each piece of a few records.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from kclient.net.connection import Connection
from kclient.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kclient.spark.pipelines import archive_reader, replay_tasks
from kclient.spark.pipelines.rate_limiter import Rate
from kclient.spark.pipelines.replay import ReplayRun, checked_settings
from kclient.spark.pipelines.replay_planning import ReplaySelection, shares_of
from kclient.spark.pipelines.replay_tasks import PartitionReceipt, Replayed, Replaying, ReplayJob, receipt_of
from kclient.sync import Admin, Consumer, Producer

CHANGES = (
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    ProduceRequest,
    EndTxnRequest,
)
DIED = 9
_PIECE = 4
"""Records of a transaction."""


class ReplayHere(ReplayRun):
    """Tasks run in this process, one after the other."""

    def carry_out(self, job: ReplayJob, todo: Sequence[Replayed], look: Callable[[], None]) -> list[PartitionReceipt]:
        return carry_out_here(job, todo)


def carry_out_here(job: ReplayJob, todo: Sequence[Replayed]) -> list[PartitionReceipt]:
    """Have one task do it, without Spark."""
    shares = shares_of(todo, 1, Rate())
    numbers = pa.record_batch([pa.array(range(len(shares)), pa.int64())], ["id"])
    told = list(Replaying(job, shares).run(iter([numbers])))
    return [receipt_of(text) for batch in told for text in batch.column(0).to_pylist()]


def run(bootstrap: str, folder: Path, topic: str, target: str, death: tuple[int, bool] | None) -> None:
    """One run, which dies at its so-manieth request that changes something, after or before that is carried out."""
    replay_tasks._TRANSACTION_S = 0.0
    archive_reader._BATCH_ROWS = _PIECE
    settings, asking = checked_settings({"bootstrap.servers": bootstrap, "linger.ms": "0"})
    if death is not None:
        arm(*death)
    selection = ReplaySelection(topics=(topic,), target=target)
    ReplayHere(None, folder, settings, asking, selection, target, False, None).run()


def arm(number: int, answered: bool) -> None:
    """From now on, count requests, and die."""
    count = 0
    asked = Connection.request

    async def request(self: Connection, *arguments: Any, **named: Any) -> Any:
        nonlocal count
        if not isinstance(arguments[0], CHANGES):
            return await asked(self, *arguments, **named)
        count += 1
        own = count
        if own == number and not answered:
            os._exit(DIED)
        answer = await asked(self, *arguments, **named)
        if own == number:
            os._exit(DIED)
        return answer

    Connection.request = request  # type: ignore[method-assign]


def forked(run: Callable[..., object], *arguments: Any) -> int:
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


def deaths(seed: str | None) -> list[tuple[int, bool]]:
    """When runs die: at each of the first requests on either side, or at random."""
    if seed is None:
        return [(number, answered) for number in range(1, 22) for answered in (False, True)]
    chance = random.Random(seed)
    return [(chance.randrange(1, 40), chance.random() < 0.5) for _ in range(40)]


def start(bootstrap: str, folder: Path, topic: str, target: str, *seed: str, timeout: float) -> int:
    """Run this as a process; returns how many runs died."""
    return deaths_of("tests.replay_deaths", bootstrap, str(folder), topic, target, *seed, timeout=timeout)


def deaths_of(module: str, *arguments: str, timeout: float) -> int:
    """Run a module as a process; returns how many runs died, as it prints at its end."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, cwd=Path(__file__).parents[1], check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(json.loads(done.stdout.splitlines()[-1]))


def main(bootstrap: str, folder: str, topic: str, target: str, seed: str | None = None) -> None:
    assert (Admin, Consumer, Producer) is not None  # imported once, not by each process that is forked
    died = 0
    for death in deaths(seed):
        code = forked(run, bootstrap, Path(folder), topic, target, death)
        assert code in {0, DIED}, f"a run that was to die at {death} failed"
        died += code == DIED
    assert forked(run, bootstrap, Path(folder), topic, target, None) == 0
    print(json.dumps(died))


if __name__ == "__main__":
    main(*sys.argv[1:])
