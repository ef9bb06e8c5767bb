"""Where gateways crash amid transactions: right before a step is durable, or right behind it, before anybody is told.

The steps of the coordinator and of groups are commits of rows; those of the leaders of partitions are what peers ask
them for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from unittest import mock

import trio

from kclient.errors import ErrorCode, error_for
from kclient.gateway.append import Append
from kclient.gateway.peers import LocalPeers
from kclient.gateway.rows.keys import PENDING, TRANSACTIONS, parse_transaction_key
from kclient.gateway.rows.transactions import decode_transaction
from kclient.gateway.transaction_states import CoordinatedState
from tests.simulation.cluster_nodes import Node
from tests.simulation.machines import Machine, current

STEPS: Final = ("init", "join", "offsets", "verify", "prepare", "marker", "complete")
"""InitProducerId; a partition or group joins; TxnOffsetCommit; a leader asks for a batch; EndTxn; a partition's marker;
all markers are durable."""
_STEP_OF: Final = {
    CoordinatedState.EMPTY: "init",
    CoordinatedState.ONGOING: "join",
    CoordinatedState.PREPARE_COMMIT: "prepare",
    CoordinatedState.PREPARE_ABORT: "prepare",
    CoordinatedState.COMPLETE_COMMIT: "complete",
    CoordinatedState.COMPLETE_ABORT: "complete",
}


class Seam(NamedTuple):
    """A place in a gateway's work."""

    step: str
    made: bool
    """Whether the step is durable there."""

    def __str__(self) -> str:
        return f"{'behind' if self.made else 'before'} {self.step}"


SEAMS: Final = tuple(Seam(step, made) for step in STEPS for made in (False, True))
ON_DISK: Final = (Seam("append", made=True), Seam("sync", made=False), Seam("sync", made=True))
"""Where the power may be cut besides: a marker is appended, and not durable yet; right before what was written is
synced, and right behind it."""


class _Trap:
    def __init__(self, left: int) -> None:
        self.left = left
        self.struck: Node | None = None
        self.news = trio.Event()


class Seams:
    """Has gateways crash at seams.

    Args:
        crash: Makes a gateway crash in this moment: nobody hears of it any more, and it does not reach the store.
    """

    def __init__(self, crash: Callable[[Node], object]) -> None:
        self._crash = crash
        self._nodes: dict[Machine, Node] = {}
        self._armed: dict[Seam, _Trap] = {}
        self.passed: Counter[Seam] = Counter()
        """How often each was passed."""

    def watch(self, node: Node) -> None:
        """A gateway is about to start."""
        self._nodes[node.machine] = node

        def committed(made: bool, writes: Mapping[str, bytes | None]) -> None:
            for key, value in writes.items():
                if key.startswith(TRANSACTIONS) and value is not None:
                    found = decode_transaction(value, parse_transaction_key(key))
                    self.come(node, Seam(_STEP_OF[found.state], made))
                elif key.startswith(PENDING) and value is not None:
                    self.come(node, Seam("offsets", made))

        node.reached.manager.seam = committed

    def come(self, node: Node, seam: Seam) -> bool:
        """A gateway comes to a seam; whether it crashes there."""
        self.passed[seam] += 1
        trap = self._armed.get(seam)
        if trap is None:
            return False
        trap.left -= 1
        if trap.left:
            return False
        del self._armed[seam]
        trap.struck = node
        self._crash(node)
        trap.news.set()
        return True

    async def strike(self, seam: Seam, count: int, seconds: float) -> Node | None:
        """Have whoever passes a seam as the `count`-th crash; the gateway, or None if that takes longer."""
        trap = self._armed[seam] = _Trap(count)
        with trio.move_on_after(seconds):
            await trap.news.wait()
        if self._armed.get(seam) is trap:
            del self._armed[seam]
        return trap.struck

    @contextmanager
    def installed(self) -> Iterator[None]:
        """What leaders do for coordinators is seen in this block."""

        append, write, verify = LocalPeers._append, LocalPeers.write_markers, LocalPeers.verify

        def appended(peers: LocalPeers, *arguments: Any) -> Any:
            """The marker of each partition."""
            crashed = self._here(Seam("marker", made=False))
            if crashed:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            result = append(peers, *arguments)
            if isinstance(result, Append):
                self._here(Seam("append", made=True))
            return result

        async def written(peers: LocalPeers, *arguments: Any, **options: Any) -> Any:
            result = await write(peers, *arguments, **options)
            self._crashed(Seam("marker", made=True))
            return result

        async def verified(peers: LocalPeers, *arguments: Any, **options: Any) -> Any:
            self._crashed(Seam("verify", made=False))
            result = await verify(peers, *arguments, **options)
            self._crashed(Seam("verify", made=True))
            return result

        with mock.patch.multiple(LocalPeers, _append=appended, write_markers=written, verify=verified):
            yield

    def _crashed(self, seam: Seam) -> None:
        if self._here(seam):
            raise error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the gateway has crashed")

    def _here(self, seam: Seam) -> bool:
        machine = current()
        node = None if machine is None else self._nodes.get(machine)
        return node is not None and self.come(node, seam)
