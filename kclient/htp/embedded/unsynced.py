"""What of a log is written and not synced yet: the segments, the plan that is on its way, and who waits for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from kclient.htp.embedded.files import SyncPoint
from kclient.htp.embedded.services import Covered
from kclient.htp.embedded.syncer import FileSync, PlanOwner, SyncPlan

if TYPE_CHECKING:
    from kclient.htp.embedded.handles import OpenFiles
    from kclient.htp.embedded.segment import Segment


class Unsynced:
    """Keeps the files open that are to be synced, and knows what each plan covers.

    Args:
        open_files: Of the store.
        want: Has `plan` called, soon, and what it returns carried out.
    """

    __slots__ = (
        "_abandoned",
        "_all",
        "_entries",
        "_generation",
        "_open_files",
        "_passed",
        "_plans",
        "_requested",
        "_segments",
        "_synced_entries",
        "_want",
        "_wanted",
        "_when_over",
    )

    def __init__(self, open_files: OpenFiles, want: Callable[[], object]) -> None:
        self._open_files = open_files
        self._want = want
        self._segments: list[Segment] = []
        """Written to since their last sync, in order; held open."""
        self._passed: dict[Segment, int] = {}
        """Synced, and held open until the newest plan that names their files is over: each with its number."""
        self._entries = 0
        self._synced_entries = 0
        """Counts of segments that were created, and of those whose entry in the directory is durable."""
        self._requested: SyncPlan | None = None
        """The newest plan, until it is carried out."""
        self._wanted = False
        """Whether a plan is about to be asked for."""
        self._all = False
        """Whether everything is to be synced, also what was written since the plan was made that is on its way."""
        self._plans = 0
        """That were made."""
        self._abandoned = False
        """Whether nothing is synced any more."""
        self._generation = 0
        """Another one after a sync failed: what older plans were to sync is gone."""
        self._when_over: list[tuple[int, Callable[[], object]]] = []
        """With the number of the plan that is waited for."""

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self._segments)

    def __contains__(self, segment: Segment) -> bool:
        """Whether a segment was written to since its last sync."""
        return segment in self._segments

    def hold(self, segment: Segment) -> bool:
        """Open the last segment, creating its file if need be, until it is synced; False if it cannot be held yet."""
        if self._segments and self._segments[-1] is segment:
            return True
        if self._passed.pop(segment, None) is not None:
            self._segments.append(segment)
            return True
        if not segment.exists:
            self._open_files.files.remove(segment.path)  # if it was given up, and could not be removed then
        self._segments.append(segment)  # first: it may have to be synced at once to make room
        held = False
        try:
            held = self._open_files.hold(segment.handle, self.sync, create=not segment.exists)
        finally:
            if not held:
                self._segments.pop()
            if not segment.exists and segment.handle.fd >= 0:  # created, also where a signal handler's exception came
                segment.exists = True
                self._entries += 1
        return held

    def let_go(self) -> None:
        """Keep none of the files open any more."""
        segments = [*self._passed, *self._segments]
        self._passed.clear()
        self._segments.clear()
        for segment in segments:
            self._open_files.let_go(segment.handle)

    # --- plans ---

    def request(self) -> None:
        """Have everything synced that was written, by the end of this turn of the event loop."""
        if not (self._wanted or self._abandoned):
            try:
                self._wanted = True
                self._want()
            except BaseException:  # a signal handler's: nobody may have been asked, and the next request asks
                self._wanted = False
                raise

    def sync(self) -> None:
        """Have everything synced that is not, also where nobody waits for it."""
        if self._segments or self._passed:  # these may be written to again before they are let go
            self._all = True
            if self._requested is None:
                self.request()

    def plan(self, owner: PlanOwner, directory: str, active: Segment, end: int) -> SyncPlan | None:
        """What has to be done for everything to be synced; None if there is nothing.

        Args:
            owner: Is told of the outcome.
            directory: Of the segments.
            active: The last segment; those before it are whole.
            end: The next ordinal.
        """
        self._wanted = False
        if not self._segments or self._abandoned:
            self.over()  # the round before covered what was asked for since, or nobody would carry it out
            return None
        segments = tuple(self._segments)
        files = tuple(
            FileSync(segment.handle.fd, segment.path, SyncPoint.MESSAGES if segment is active else SyncPoint.SEALED)
            for segment in segments
        )
        self._plans += 1
        covered = Covered(self._generation, segments, segments[-1].size, self._entries, self._plans)
        new = directory if self._entries != self._synced_entries else None
        self._requested = SyncPlan(owner, files, new, end, covered)
        return self._requested

    def carried_out(self, plan: SyncPlan) -> Covered | None:
        """A plan was carried out, or has failed: what it covers; None if that is gone."""
        covered = plan.detail
        assert isinstance(covered, Covered)
        if covered.generation != self._generation:
            return None
        if plan is self._requested:
            self._requested = None
        return covered

    def cover(self, covered: Covered) -> list[Segment]:
        """That is synced: the segments of which nothing is left to be."""
        last = covered.segments[-1]
        self._synced_entries = covered.entries
        whole = []
        while self._segments:
            segment = self._segments[0]
            if segment.base > last.base or (segment is last and segment.size > covered.position):
                break
            del self._segments[0]
            whole.append(segment)
            if self._requested is None:
                self._open_files.let_go(segment.handle)
            else:  # it names the file by its descriptor, whose number would be another file's by then
                self._passed[segment] = self._plans
        if self._passed:
            for segment in [each for each, plan in self._passed.items() if plan <= covered.number]:
                del self._passed[segment]
                self._open_files.let_go(segment.handle)
        self._all = self._all and bool(self._segments or self._passed)
        if self._all and self._segments:
            self.request()
        return whole

    def give_up(self) -> None:
        """A sync has failed, or there will be none: no plan counts any more."""
        self._generation += 1
        self._requested = None
        self._all = False

    def entry_has_changed(self) -> None:
        """Another file has gone from the directory, which has to be synced with what is written next."""
        self._entries += 1

    def entries_are_gone(self) -> None:
        """The segments that were created since have been removed."""
        self._synced_entries = self._entries

    # --- waiting ---

    @property
    def idle(self) -> bool:
        """Whether no sync is under way."""
        return self._requested is None and not self._wanted

    def when_idle(self, callback: Callable[[], object]) -> None:
        """Call back once no sync is under way; at once if none is. While much is written that may be never."""
        self._call_after(sys.maxsize, callback)

    def when_synced(self, callback: Callable[[], object]) -> None:
        """Call back once what is wanted to be synced now is, or has failed; at once if nothing is."""
        self._call_after(self._plans + self._wanted, callback)

    def _call_after(self, plan: int, callback: Callable[[], object]) -> None:
        if self.idle:
            callback()
        else:
            self._when_over.append((plan, callback))

    def over(self, synced: int = 0) -> None:
        """A plan is over: call those back who waited for it, if it could be `synced`; all of them if none is left."""
        if self._when_over:
            last = sys.maxsize if self.idle else synced
            due = [callback for plan, callback in self._when_over if plan <= last]
            self._when_over = [each for each in self._when_over if each[0] > last]
            for callback in due:
                callback()

    def abandon(self) -> None:
        """There will be no sync: whoever waits for one is called back."""
        self.give_up()
        self._abandoned = True
        self._wanted = False
        self.over()
