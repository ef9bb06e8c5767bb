"""Group commit, seen from the event loop: what wants to be synced goes to the syncer's thread, outcomes come back.

All in turns: what is appended in one turn of the loop goes into one round, and where thousands of topics have something
to say, others have the loop in between.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from kclient.concurrency import LoopHandle
from kclient.htp.embedded.syncer import Syncer, SyncOutcome
from kclient.htp.errors import StorageError
from kclient.htp.loop import Signal

if TYPE_CHECKING:
    from kclient.htp.embedded.files import Files
    from kclient.htp.embedded.liveness import DiskLiveness
    from kclient.htp.embedded.services import SyncedLog

logger: logging.Logger = logging.getLogger(__name__)

_TURN_S: Final = 0.002
"""Seconds of one turn of the event loop that are for what syncing thousands of topics takes there."""


class GroupCommit:
    """Has logs synced, many at once. Made in the event loop whose logs they are, and called there.

    Args:
        files: The file system.
        root: The directory that holds the logs.
        failed: Called in the event loop if nothing can be synced any more.
        mode: How the syncer syncs.
        liveness: Is told of syncs.
    """

    def __init__(
        self,
        files: Files,
        root: str,
        failed: Callable[[StorageError], object],
        *,
        mode: str,
        liveness: DiskLiveness,
    ) -> None:
        self._root = root
        self._failed = failed
        self._post = LoopHandle().post
        self._unsynced: deque[SyncedLog] = deque()
        self._turn_over = Signal(self._request, self._post)
        self._outcomes: deque[SyncOutcome] = deque()
        self._round_over = Signal(self._settle, self._post)
        self.syncer: Syncer = Syncer(files, self._deliver, self._syncer_failed, root, liveness, mode=mode)
        self._liveness = liveness

    def want(self, log: SyncedLog) -> None:
        """Have the plan of a log carried out, soon.

        Not at once: what the other tasks append in this turn of the loop goes into the same round. A round that begins
        with the first append would hold up the others' writes, on the file system and for the GIL.
        """
        self._unsynced.append(log)
        self._turn_over.fire()

    def _request(self) -> None:
        plans = []
        until = time.perf_counter() + _TURN_S
        while self._unsynced:
            plan = self._unsynced.popleft().plan()
            if plan is not None:
                plans.append(plan)
            if time.perf_counter() >= until and self._unsynced:
                self._turn_over.fire()
                break
        if plans:
            self.syncer.request(plans)

    def _deliver(self, outcomes: Sequence[SyncOutcome]) -> None:
        """In the syncer's thread: a round is over."""
        self._outcomes.extend(outcomes)
        self._round_over.fire()

    def _settle(self) -> None:
        self._liveness.tell()
        until = time.perf_counter() + _TURN_S
        while self._outcomes:
            plan, error = self._outcomes.popleft()
            try:
                plan.owner.settled(plan, error)
            except Exception as unexpected:
                logger.critical("%s: settling a sync failed", plan.owner.name, exc_info=unexpected)
                self._failed(StorageError(f"{plan.owner.name}: settling a sync failed: {unexpected!r}"))
            if time.perf_counter() >= until and self._outcomes:
                self._round_over.fire()
                break

    def _syncer_failed(self, error: BaseException) -> None:
        """In the syncer's thread: it ends."""
        reason = f"{self._root}: the thread that syncs has ended: {error!r}; open the store again"
        self._post(lambda: self._failed(StorageError(reason)))
