"""Group commit: one thread syncs whatever waits, round after round, and tells the event loop once per round.

While a round runs, new plans pile up; the next round takes them all. A plan holds everything a topic needs for its
messages up to some ordinal to be durable, so a newer plan of the same topic replaces the one that still waits.

How a round syncs was decided by measuring (docs/internals/log-and-recovery.md): a few files are synced one by
one; more than `_SYNC_EACH_LIMIT` with one `syncfs`, which costs a tenth of that for 64 files, where the system has
one that reports errors, else on several threads. After a `syncfs` that failed there is no other: it told of the error
once and for all files, also of those that are written and whose plans come in a later round; only each one's own sync
tells of it then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from kclient.errors import ConfigError
from kclient.htp.embedded.files import Files, SyncPoint

if TYPE_CHECKING:
    from kclient.htp.embedded.liveness import DiskLiveness

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

_SYNC_EACH_LIMIT: Final = 3
"""Syncs of one round up to which they are done one by one."""
_THREADS: Final = 8

GROUP_SYNC_MODES: Final = ("auto", "each", "filesystem")


class FileSync(NamedTuple):
    """One file to be synced; its descriptor stays open until the round is over."""

    fd: int
    path: str
    point: SyncPoint


class PlanOwner(Protocol):
    """Whom a plan belongs to: a log."""

    name: str

    def settled(self, plan: SyncPlan, error: Exception | None) -> None:
        """A plan was carried out, or failed."""


@dataclass(slots=True, frozen=True, eq=False)
class SyncPlan:
    """What has to be synced for one topic, in this order."""

    owner: PlanOwner
    files: tuple[FileSync, ...]
    directory: str | None
    """The directory to be synced, if there are new entries in it."""
    end: int
    """The ordinal below which everything is durable afterwards."""
    detail: object = None
    """What the owner wants to remember."""


class SyncOutcome(NamedTuple):
    """How a plan ended."""

    plan: SyncPlan
    error: Exception | None


class Syncer:
    """The thread that syncs.

    Args:
        files: The file system.
        deliver: Called in the syncer's thread with the outcomes of each round.
        failed: Called in the syncer's thread if it ends by itself: nothing is synced any more.
        root: A directory of the file system that holds the files.
        liveness: Is told when a round begins and ends.
        mode: `auto`; `each` never uses `syncfs`; `filesystem` always does, until one fails.
        name: Of the thread.
    """

    def __init__(
        self,
        files: Files,
        deliver: Callable[[Sequence[SyncOutcome]], object],
        failed: Callable[[BaseException], object],
        root: str,
        liveness: DiskLiveness,
        *,
        mode: str = "auto",
        name: str = "kclient-htp-sync",
    ) -> None:
        if mode not in GROUP_SYNC_MODES:
            raise ConfigError(f"group_sync is one of {', '.join(GROUP_SYNC_MODES)}, not {mode!r}")
        if mode == "filesystem" and not files.syncs_everything:
            raise ConfigError("group_sync=filesystem needs Linux 5.8 or newer: say auto")
        self._files = files
        self._deliver = deliver
        self._failed_for_good = failed
        self._root = root
        self._liveness = liveness
        self._root_fd = -1
        self._least_for_all = _least_for_all(mode, files)
        self._wake = threading.Condition(threading.Lock())
        self._plans: dict[object, SyncPlan] = {}
        self._failed: set[object] = set()
        self._stopping = False
        self._pool: ThreadPoolExecutor | None = None
        self._chores: ThreadPoolExecutor | None = None
        self.rounds: int = 0
        """Rounds done since the start."""
        # A daemon: an event loop that died without closing the store must not keep the process from ending. What
        # was written is in the page cache by then, and what was reported is on disk.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; nothing has been written before.

        Raises:
            OSError: If the directory cannot be opened.
        """
        if self._files.syncs_everything:
            # One descriptor from before the first write to the end: syncfs tells a descriptor of the errors since
            # it was opened, and of an older one only if nobody else was told.
            self._root_fd = self._files.open_directory(self._root)
        self._thread.start()

    def request(self, plans: Iterable[SyncPlan]) -> None:
        """Have plans carried out in the next round, each in place of one of the same owner that waits.

        A plan is dropped, and there is no outcome, while an earlier failure of the owner is not forgiven.
        """
        with self._wake:
            self._plans.update((plan.owner, plan) for plan in plans)
            self._wake.notify()

    def forgive(self, owner: object) -> None:
        """Take plans of an owner again whose plan failed; those that came meanwhile are dropped.

        After a failed sync the operating system takes the pages for clean: syncing the file again would succeed
        and prove nothing. The owner gives up the file first.
        """
        with self._wake:
            self._failed.discard(owner)
            self._plans.pop(owner, None)

    def chore(self, function: Callable[[], object]) -> None:
        """Have something done that nobody waits for, in order, on a thread beside; a failure is logged.

        Removing a large file takes long enough to hold up a round of syncs.
        """
        if self._chores is None:
            self._chores = ThreadPoolExecutor(1, thread_name_prefix="kclient-htp-chores")
        try:
            self._chores.submit(self._do, function)
        except RuntimeError as error:  # no thread can be started
            _not_done(error)

    def chores_done(self) -> Callable[[], object]:
        """What waits, in another thread, until all chores are done that were asked for so far."""
        if self._chores is None:
            return lambda: None
        try:
            return self._chores.submit(lambda: None).result
        except RuntimeError as error:  # no thread can be started, nor could one for those before
            _not_done(error)
            return lambda: None

    def stop(self) -> None:
        """Finish what waits, and end; blocks until the thread has ended."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()
        for pool in (self._pool, self._chores):
            if pool is not None:
                pool.shutdown()
        if self._root_fd >= 0:
            fd, self._root_fd = self._root_fd, -1
            self._files.close(fd)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            logger.critical("the thread that syncs has ended: %r", error, exc_info=error)
            self._failed_for_good(error)

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (self._plans or self._stopping):
                    self._wake.wait()
                plans = [plan for plan in self._plans.values() if plan.owner not in self._failed]
                self._plans = {}
                if not plans and self._stopping:
                    return
            if plans:
                self._finish(self._round(plans))

    def _finish(self, outcomes: list[SyncOutcome]) -> None:
        failed = [outcome.plan.owner for outcome in outcomes if outcome.error is not None]
        if failed:
            with self._wake:
                self._failed.update(failed)
        self.rounds += 1
        self._deliver(outcomes)

    def _do(self, chore: Callable[[], object]) -> None:
        try:
            chore()
        except FileNotFoundError:
            pass  # the topic was deleted meanwhile, and its directory with all that was to be done in it
        except Exception as error:  # noqa: BLE001  (nobody waits for it)
            _not_done(error)

    def _round(self, plans: list[SyncPlan]) -> list[SyncOutcome]:
        self._liveness.sync_begins()
        try:
            return self._sync(plans)
        except Exception as error:  # noqa: BLE001  (no thread could be started, for one: whoever waits hears of it)
            return [SyncOutcome(plan, error) for plan in plans]
        finally:
            self._liveness.sync_ends()

    def _sync(self, plans: list[SyncPlan]) -> list[SyncOutcome]:
        count = sum(len(plan.files) + (plan.directory is not None) for plan in plans)
        if self._least_for_all is not None and count >= self._least_for_all and self._sync_everything():
            return [SyncOutcome(plan, None) for plan in plans]
        if count > _SYNC_EACH_LIMIT and len(plans) > 1:
            return self._in_parallel(plans)
        return [self._carry_out(plan) for plan in plans]

    def _sync_everything(self) -> bool:
        """One `syncfs` for all that was written; False if it failed, for good."""
        try:
            self._files.sync_everything(self._root_fd, SyncPoint.EVERYTHING)
        except OSError as error:
            # Which file it was, in this round or of a later one, nobody tells, and the next syncfs would succeed. Each
            # one's own sync tells: errors are kept per file, and what was written to stays open until it is synced.
            self._least_for_all = None
            logger.error(
                "syncfs failed (%s): from now on, until the store is opened again, each file is synced by itself", error
            )
            return False
        return True

    def _in_parallel(self, plans: list[SyncPlan]) -> list[SyncOutcome]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix=self._thread.name)
        parts = [plans[number::_THREADS] for number in range(min(_THREADS, len(plans)))]
        outcomes = self._pool.map(lambda part: [self._carry_out(plan) for plan in part], parts)
        return [outcome for part in outcomes for outcome in part]

    def _carry_out(self, plan: SyncPlan) -> SyncOutcome:
        try:
            for file in plan.files:
                self._files.sync(file.fd, file.point)
            if plan.directory is not None:
                self._files.sync_directory(plan.directory, SyncPoint.SEGMENT)
        except Exception as error:  # noqa: BLE001  (whatever it is, whoever waits has to hear of it)
            return SyncOutcome(plan, error)
        return SyncOutcome(plan, None)


def _least_for_all(mode: str, files: Files) -> int | None:
    """From how many syncs in a round on one `syncfs` takes their place; None if never."""
    if mode == "filesystem":
        return 0
    return _SYNC_EACH_LIMIT + 1 if mode == "auto" and files.syncs_everything else None


def _not_done(error: Exception) -> None:
    logger.warning("cleaning up failed, it will be tried when the store is opened again: %s", error)
