"""Transactions on gateways over an embedded store whose power is cut, in virtual time: what was not synced is lost.

A world of transactions (`transaction_world`) on one machine: one gateway, or several processes over one directory. At a
step of a transaction, at a sync, or at any other moment the power goes, for all of them. What the disk has then is what
was synced, and of the rest any part: of files a beginning or zeros, of new names and of removed ones some. At times the
power goes again while what was decided is being finished.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Container, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import trio

from kclient.htp import open_store
from kclient.htp.embedded import processes
from kclient.htp.embedded.files import SyncPoint
from tests.gateway_wire import Wire
from tests.simulation.cluster_nodes import Node
from tests.simulation.cluster_world import NUMBERS, PARTITIONS, live
from tests.simulation.promises import promise
from tests.simulation.transaction_clients import COPY, INPUT
from tests.simulation.transaction_seams import ON_DISK, SEAMS, Seam
from tests.simulation.transaction_world import TransactionWorld
from tests.unit.htp.disks import PowerCutFiles

POWER_SEAMS = (*SEAMS, *ON_DISK)
_OF_MESSAGES = frozenset({SyncPoint.MESSAGES, SyncPoint.EVERYTHING})


class Machine:
    """The directory that the gateways of a world serve, and its disk.

    Args:
        folder: For what each cut leaves.
        dice: What is left.
        together: Whether several processes have it open.
        skip: Syncs that are left out.
    """

    def __init__(self, folder: Path, dice: Random, *, together: bool, skip: Container[SyncPoint]) -> None:
        self._folder = folder
        self._dice = dice
        self._together = together
        self._skip = skip
        self._lives = 0
        self._group_sync = dice.choice(["each", "auto", "filesystem"])
        self.disk = PowerCutFiles.found(folder / "life-0", skip)

    def open(self) -> Any:
        """An opening of its own for each process."""
        return open_store(
            f"embedded:{self.disk.base}/data", files=self.disk, group_sync=self._group_sync, together=self._together
        )

    def cut(self) -> None:
        """The power goes: what is on the disk in this moment is found later."""
        self._lives += 1
        self.disk.on_sync = None
        self.disk.cut(self._folder / f"life-{self._lives}", self._dice if self._dice.random() < 0.8 else None)

    def switch_on(self) -> None:
        """It is there again; whoever had the directory open has ended."""
        self.disk = PowerCutFiles.found(self._folder / f"life-{self._lives}", self._skip)


class PowerWorld(TransactionWorld):
    """A world of transactions whose power is cut. Takes what `TransactionWorld` takes, and more.

    Args:
        seed: Of the world.
        backend: `embedded`.
        folder: For its directories.
        events: None: it is the power that makes trouble.
        gateways: So many; if None, the seed says it.
        seams: Where the power may be cut; if there are none, at any moment.
        skip: Syncs that are left out.
    """

    place: Machine  # type: ignore[assignment]

    def __init__(
        self,
        seed: int,
        backend: str,
        folder: Path,
        events: Sequence[str] = (),
        *,
        gateways: int | None = None,
        seams: Sequence[Seam] = POWER_SEAMS,
        skip: Container[SyncPoint] = (),
    ) -> None:
        super().__init__(seed, backend, folder, events, seams=seams)
        self.gateways = gateways or self.dice.choice([1, 1, 2, 3])
        self.place = Machine(folder, self.dice, together=self.gateways > 1, skip=skip)
        self._segment_ms = self.dice.choice([604_800_000, 604_800_000, 2000])
        self._cut = False
        """The power is off."""
        self._switching_on: trio.CancelScope | None = None

    async def prepare(self, wire: Wire) -> None:
        for topic in (INPUT, COPY):
            made = await wire.create(topic, PARTITIONS, segment_ms=str(self._segment_ms))
            promise(not made.error_code, made)
        self.ready.set()

    # The power

    def strike(self, node: Node) -> None:
        self.cut()

    def cut(self) -> None:
        """The power goes in this moment."""
        if self._cut:
            return
        self._cut = True
        self.counts["cut"] += 1
        self.place.cut()
        for node in list(self.running):
            self.crash(node)
        if self._switching_on is not None:
            self.counts["cut amid a start"] += 1
            self._switching_on.cancel()

    async def _switch_on(self) -> None:
        """All gateways start, until the power lasts."""
        while True:
            for node in list(self.running):
                await self.end(node, "killed")
            if self._cut:
                self.place.switch_on()
                self._cut = False
            self.place.disk.on_sync = self._on_sync
            with trio.CancelScope() as self._switching_on:
                for number in NUMBERS[: self.gateways]:
                    await self.start(number)
            self._switching_on = None
            if not self._cut:
                return

    def _on_sync(self, point: SyncPoint, made: bool) -> None:
        if point in _OF_MESSAGES and self.running:
            self.seams.come(self.running[0], Seam("sync", made))

    async def rule(self, times: int) -> None:
        """The power is cut so often, first at the seam that the seed says."""
        dice = self.dice
        self.loop.sync_s = dice.choice([0.05, 0.05, 1.0])
        await self._switch_on()
        async with self.nodes[1].connected() as wire:
            with trio.fail_after(60):
                await self.prepare(wire)
        for turn in range(times):
            await trio.sleep(dice.random() * dice.choice([1, 5]))
            await self.next_seam(30 if not turn else 15)
            self.cut()
            async with trio.open_nursery() as again:
                if dice.random() < 0.3:
                    again.start_soon(self.next_seam, 100)
                await self._switch_on()
                again.cancel_scope.cancel()
        await trio.sleep(5)
        self.working = False

    async def begin(self) -> None:
        """It begins with what `rule` does."""

    async def run(self, times: int) -> None:
        numbers = Random(self.seed)
        with mock.patch.object(processes.secrets, "randbits", numbers.getrandbits):
            await super().run(times)


def cut_power(seed: int, times: int = 3, **options: Any) -> PowerWorld:
    """A world whose power is cut so often, judged; see `live`. Takes what `PowerWorld` takes."""
    return live(seed, times, "embedded", (), partial(PowerWorld, **options))


if __name__ == "__main__":
    import logging
    import traceback

    logging.disable()
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for number in range(first, first + count):
        try:
            world = cut_power(number)
            print(number, hashlib.sha256(repr(world.history).encode()).hexdigest()[:8], dict(world.counts), flush=True)
        except BaseException as error:
            traceback.print_exception(error)
            print(f"SEED {number}: {error!r}", flush=True)
