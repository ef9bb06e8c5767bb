"""Which watched values of the memory backend were written or deleted, and when; guarded by the state's lock."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from kclient.htp.change_tokens import CHANGES_KEPT, ChangePlace, below, check_place, to_be_followed, touched_by
from kclient.htp.port import Change, ChangePage

if TYPE_CHECKING:
    from kclient.concurrency import Wakeup
    from kclient.htp.port import Versioned


class MemoryChanges:
    """Records and tells changes, of one name until it is reset."""

    def __init__(self) -> None:
        self._history = secrets.randbits(48) + 1
        self._followed: dict[str, int] = {}
        """The prefixes, each with the revision from which on its changes are known."""
        self._prefixes: tuple[str, ...] = ()
        self._rows: dict[tuple[str, bool], int] = {}
        """The revision of the last write, and of the last deletion (True), of each key; the last one last."""
        self._spare = 0
        """Changes that may be recorded until all who wait look again."""
        self._floor = 0
        """Of changes up to this revision some are forgotten."""
        self._waiting: dict[tuple[str, ...], set[Wakeup]] = {}
        """By the prefixes that they follow: set when a change below one is recorded, or the store has gone."""

    def record(self, revision: int, writes: Mapping[str, bytes | None], values: Mapping[str, Versioned]) -> None:
        """Note what a commit is about to write, as far as it is followed."""
        if not self._prefixes:
            return
        touched = [key for key in below(writes, self._prefixes) if writes[key] is not None or key in values]
        if not touched:
            return
        for key in touched:
            deleted = writes[key] is None
            self._rows.pop((key, False), None)
            if deleted:
                self._rows.pop((key, True), None)
            self._rows[key, deleted] = revision
        if len(self._rows) > CHANGES_KEPT * 1.1:
            self._forget()
        self._spare -= len(touched)
        if self._spare < 0:  # who waits for what never changes would fall behind
            self._spare = CHANGES_KEPT // 10
            self.tell()
            return
        for prefixes, waiting in self._waiting.items():
            if touched_by(touched, prefixes):
                for each in waiting:
                    each.set()

    def _forget(self) -> None:
        """Let the oldest go, of each commit all or none."""
        oldest = next(islice(self._rows.values(), len(self._rows) - CHANGES_KEPT - 1, None))
        gone = [row for row, version in self._rows.items() if version < oldest]
        for row in gone:
            del self._rows[row]
        if gone:
            self._floor = oldest - 1

    def tell(self) -> None:
        """Have all who wait look again."""
        for waiting in self._waiting.values():
            for each in waiting:
                each.set()

    def wait(self, news: Wakeup, prefixes: tuple[str, ...]) -> None:
        """Have this one set when something changes below one of the prefixes."""
        self._waiting.setdefault(prefixes, set()).add(news)

    def wait_no_more(self, news: Wakeup, prefixes: tuple[str, ...]) -> None:
        """Have it set no more."""
        self._waiting[prefixes].discard(news)
        if not self._waiting[prefixes]:
            del self._waiting[prefixes]

    def page(
        self,
        prefixes: Sequence[str],
        place: ChangePlace | None,
        limit: int,
        revision: int,
        values: Mapping[str, Versioned],
    ) -> ChangePage:
        """What `Manager.changes` returns if it does not wait."""
        now = ChangePlace(self._history, revision)
        if place is None:
            self._followed |= dict.fromkeys(to_be_followed(prefixes, self._followed), revision)
            self._prefixes = tuple(self._followed)
            return ChangePage([], now.token, more=False)
        check_place(place, prefixes, self._history, revision, self._floor, self._followed)
        rows = self._since(place, tuple(prefixes))
        found = [Change(key, None if gone else values[key].value, version) for key, gone, version in rows[:limit]]
        if len(rows) > limit:
            last = found[-1]
            return ChangePage(found, ChangePlace(self._history, last.version, last.key).token, more=True)
        return ChangePage(found, now.token, more=False)

    def _since(self, place: ChangePlace, prefixes: tuple[str, ...]) -> list[tuple[str, bool, int]]:
        """What has changed since: keys, whether they were deleted, and the commits' versions."""
        found: list[tuple[str, bool, int]] = []
        whole = place.whole
        for (key, deleted), version in reversed(self._rows.items()):
            if version <= whole or (version == place.revision and place.key is not None and key <= place.key):
                break
            if key.startswith(prefixes):
                found.append((key, deleted, version))
        found.reverse()
        return found
