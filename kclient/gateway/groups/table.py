"""The groups of this gateway: does what their state machines ask for."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from kclient.concurrency import Completion
from kclient.errors import ClosedError, ErrorCode
from kclient.gateway.groups.events import (
    NOBODY,
    Action,
    BeatResult,
    Become,
    EmptyStored,
    GroupSettings,
    JoinResult,
    Reply,
    StoreRows,
    StoreSnapshot,
    SyncResult,
    Token,
    WorkOut,
)
from kclient.gateway.groups.group import CLASSIC, GroupKind, ManagedGroup
from kclient.gateway.rows import keys

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.groups.clockwork import Clockwork
    from kclient.gateway.groups.group import Group
    from kclient.gateway.groups.memory import GroupMemory
    from kclient.gateway.groups.streams_beats import StreamsBeatResult
    from kclient.gateway.groups.writer import GroupWriter, Row
    from kclient.gateway.workers import Workers
    from kclient.net.fair_queue import FairQueue

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_Result = TypeVar("_Result")

_FEW: Final = 16
_QUICK: Final = 1_000
"""Members and partitions of an assignment that is worked out within a millisecond or two."""


class Parked(Completion[_Result], Token, Generic[_Result]):
    """A request that may have to wait for the rest of its group."""

    __slots__ = ()


class GroupTable:
    """All groups, by their names.

    Args:
        kinds: The types of groups that there are.
        settings: The broker settings for groups.
        memory: Where they count.
        clock: What time it is.
        writer: Stores what groups ask for.
        clockwork: Calls `advance` when a group's next deadline has come.
        queue: Shares the event loop with others.
        workers: Threads for large assignments.
        overrides: Tells the settings of a group, given those of the broker.
    """

    def __init__(
        self,
        kinds: Mapping[str, GroupKind],
        settings: GroupSettings,
        *,
        memory: GroupMemory,
        clock: Clock,
        writer: GroupWriter,
        clockwork: Clockwork[str | None],
        queue: FairQueue,
        workers: Workers,
        overrides: Callable[[str, GroupSettings], GroupSettings],
    ) -> None:
        self.settings: GroupSettings = settings
        self.kinds: Mapping[str, GroupKind] = kinds
        self.groups: dict[str, ManagedGroup] = {}
        self.leaving: dict[str, deque[ManagedGroup]] = {}
        """Groups that are deleted, and whose rows are still there, by name: the oldest first."""
        self.loading: bool = True
        """Whether groups that are coordinated here may not be in it yet."""
        self.closed: bool = False
        """Whether nothing is taken any more."""
        self._memory = memory
        self._clock = clock
        self._writer = writer
        self._clockwork = clockwork
        self._queue = queue
        self._workers = workers
        self._overrides = overrides
        self._flow = queue.flow()
        self._answers: deque[Reply] = deque()

    def create(self, group_id: str, since_ms: int | None = None, kind: str = CLASSIC) -> ManagedGroup:
        """Make a group without members.

        Args:
            group_id: Its name, under which there is none.
            since_ms: Since when it is so, by the wall clock; now if None.
            kind: Its type.
        """
        group = self.kinds[kind].make(group_id, self.settings_of(group_id))
        return self.add(group, self._clock.wall_ms() if since_ms is None else since_ms)

    def add(self, group: Group, since_ms: int) -> ManagedGroup:
        """Take a group in."""
        managed = ManagedGroup(group, since_ms, self._memory.holding(), self._memory.offsets)
        self.groups[group.group_id] = managed
        return managed

    def find(self, group_id: str) -> tuple[ErrorCode, ManagedGroup | None]:
        """A group that a request of a member names, or why it cannot be used."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID, None
        if self.closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
        return ErrorCode.UNKNOWN_MEMBER_ID, self.groups.get(group_id)

    def reconfigure(self, settings: GroupSettings) -> None:
        """Take over changed settings."""
        self.settings = settings
        for group_id in self.groups:
            self.reconfigure_group(group_id)

    def reconfigure_group(self, group_id: str) -> None:
        """Take over changed settings of one group."""
        managed = self.groups.get(group_id)
        if managed is not None:
            managed.group.settings = self.settings_of(group_id)

    def settings_of(self, group_id: str) -> GroupSettings:
        """The settings of a group: its own, and else those of the broker."""
        return self._overrides(group_id, self.settings)

    def close(self) -> None:
        """Answer everything that is parked, and take nothing any more."""
        self.closed = True
        for managed in list(self.groups.values()):
            self.perform(managed, managed.group.unload())
        self._answer_some(float("inf"))

    def unload(self, managed: ManagedGroup) -> None:
        """Another gateway coordinates a group: whoever waits is told, and it is in the table no more."""
        self.perform(managed, managed.group.unload())
        group_id = managed.group.group_id
        if self.groups.get(group_id) is managed:
            del self.groups[group_id]
            self._clockwork.cancel(group_id)
            managed.holding.close()

    def convert(self, managed: ManagedGroup, kind: str) -> None:
        """A group that nobody is in becomes one of another type: what was committed stays."""
        before = managed.group
        self.perform(managed, before.unload())
        managed.group = self.kinds[kind].make(before.group_id, self.settings_of(before.group_id))
        self.remove_left(managed)
        managed.count()
        logger.info("group %s: the empty %s group becomes a %s group", before.group_id, before.type, kind)

    def remove_left(self, managed: ManagedGroup) -> None:
        """Rows that are left of members are not to be taken for members: they go with the next rows of such a group.

        While it is of another type they do no harm, and go at the next start.
        """
        if managed.left and managed.group.remove_rows(managed.left):
            managed.left = ()

    # What state machines ask for

    def advance(self, group_id: str, now: float) -> None:
        """A deadline of a group has passed."""
        managed = self.groups.get(group_id)
        if managed is not None:
            self.perform(managed, managed.group.advance(now))

    def perform(self, managed: ManagedGroup, actions: Iterable[Action]) -> None:
        """Do what a group's state machine asks for, and heed its next deadline."""
        for action in actions:
            if isinstance(action, StoreSnapshot):
                self._store(managed, action)
            elif isinstance(action, StoreRows):
                self._store_rows(managed, action)
            elif isinstance(action, Become):
                self._become(managed, action)
            elif isinstance(action, WorkOut):
                self._work_out(managed, action)
            elif action.token is not NOBODY:
                self._answers.append(action)
        self._answer()
        group_id = managed.group.group_id
        if self.groups.get(group_id) is not managed:
            return  # deleted; the name may stand for another group by now
        if managed.group.untouched and not managed.offsets and not managed.unread:
            self._forget(managed)  # who asked for it was refused, or did not come back
            return
        managed.count()
        deadline = managed.group.next_deadline()
        if deadline is None:
            self._clockwork.cancel(group_id)
        else:
            self._clockwork.schedule(group_id, deadline)

    def _forget(self, managed: ManagedGroup) -> None:
        """A group of which nothing is stored is none any more."""
        group_id = managed.group.group_id
        managed.group.delete()
        del self.groups[group_id]
        self._clockwork.cancel(group_id)
        managed.holding.close()
        managed.offsets.close()

    def take_out(self, managed: ManagedGroup) -> None:
        """A group that was deleted is none any more; its rows are still there."""
        group_id = managed.group.group_id
        del self.groups[group_id]
        self.leaving.setdefault(group_id, deque()).append(managed)
        self._clockwork.cancel(group_id)

    def _store(self, managed: ManagedGroup, store: StoreSnapshot) -> None:
        group, now_ms = managed.group, self._clock.wall_ms()
        if isinstance(store.ticket, EmptyStored):
            managed.since_ms = now_ms
        row = partial(self.kinds[group.type].encode, store.snapshot, now_ms)

        def done(error: ErrorCode) -> Iterable[None]:
            self.perform(managed, group.stored(store.ticket, error, self._clock.now()))
            return ()

        self._writer.submit(group.group_id, {keys.group_key(group.group_id): row}, done, held=store.size)

    def _store_rows(self, managed: ManagedGroup, store: StoreRows) -> None:
        group = managed.group
        if store.emptied:
            managed.since_ms = self._clock.wall_ms()

        def done(error: ErrorCode) -> Iterable[None]:
            self.perform(managed, group.stored(store.ticket, error, self._clock.now()))
            return ()

        self._writer.submit(group.group_id, store.rows(managed.since_ms), done, held=store.size)

    def _become(self, managed: ManagedGroup, wanted: Become) -> None:
        """Go on as a group of another type; its rows take the place of those of the present one in one write."""
        group_id, now_ms = managed.group.group_id, self._clock.wall_ms()
        kind = self.kinds[wanted.kind]
        group = managed.group = kind.make(group_id, self.settings_of(group_id))
        rows: dict[str, Row] = dict.fromkeys(wanted.gone)
        rows[keys.group_key(group_id)] = partial(kind.encode, wanted.snapshot, now_ms)

        def done(error: ErrorCode) -> Iterable[None]:
            if error:
                managed.left = wanted.gone
                self.remove_left(managed)
            return ()

        self._writer.submit(group_id, rows, done)
        self.perform(managed, group.restore(wanted.snapshot, self._clock.now()))
        self.perform(managed, group.rebalance(wanted.reason, self._clock.now()))

    def _work_out(self, managed: ManagedGroup, wanted: WorkOut) -> None:
        """Work out an assignment: at once if that is quick, else in a thread."""

        def tell(work: Callable[[], Mapping[str, Any]]) -> None:
            try:
                found = work()
            except ClosedError:
                return  # whoever waits is told so when the gateway lets go of the group
            except Exception:
                logger.exception("group %s: no assignment could be worked out", managed.group.group_id)
                self.perform(managed, wanted.done(None, self._clock.now()))
            else:
                self.perform(managed, wanted.done(found, self._clock.now()))

        if wanted.cost <= _QUICK:
            tell(wanted.work)
            return
        with suppress(ClosedError):  # likewise
            self._workers.run(wanted.work).on_done(lambda done: tell(done.result))

    def _answer(self) -> None:
        """Answer what was parked: a few at once, the members of a large group one after the other."""
        if len(self._answers) <= _FEW:
            while self._answers:
                _give(self._answers.popleft())
        elif not self._flow.queued:
            self._flow.add(self._answer_some)

    def _answer_some(self, until: float) -> bool:
        clock = self._queue.clock
        while self._answers:
            _give(self._answers.popleft())
            if clock() >= until:
                break
        return bool(self._answers)


def without_overrides(_group_id: str, settings: GroupSettings) -> GroupSettings:
    """No group has settings of its own."""
    return settings


def _give(reply: Reply) -> None:
    # the group answers a token with the kind of result that it was parked for
    cast("Parked[JoinResult | SyncResult | BeatResult | StreamsBeatResult]", reply.token).set_result(reply.result)


def groups_of(table: GroupTable) -> Iterator[ManagedGroup]:
    """Every group that there is when its turn comes, of those there are now."""
    for group_id, managed in list(table.groups.items()):
        if table.groups.get(group_id) is managed:
            yield managed
