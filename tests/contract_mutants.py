"""Mistakes planted in the memory backend, each of which the contract of HTP has to find.

`python -m tests.contract_mutants` runs, for each, the tests of the subject that it belongs to, and prints as JSON which
tests failed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import copy
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

import kclient.htp.contract
from kclient.htp import ConflictError, Place, Pulled, Topic, Versioned, memory
from kclient.htp.change_tokens import CHANGES_KEPT
from kclient.htp.memory.broker import MemoryBroker
from kclient.htp.memory.changes import MemoryChanges
from kclient.htp.memory.faults import FaultyTopic
from kclient.htp.memory.manager import MemoryManager
from kclient.htp.memory.state import LeaseRow, MemoryLog, MemoryState
from kclient.htp.memory.topic import MemoryTopic
from tests.contract_run import NEEDED_PLUGINS

FOLDER = Path(kclient.htp.contract.__file__).parent


class Mutant(NamedTuple):
    """A method in the place of another one, and the file of tests that has to notice."""

    owner: type
    method: str
    instead: Any
    file: str


_shut = MemoryBroker.shut
_append = MemoryLog.append
_open_log = MemoryState.open_log
_record = MemoryChanges.record
_pull = MemoryLog.pull
_send = FaultyTopic.send_nowait
_commit = MemoryManager.commit
_acquire = MemoryManager.acquire
_scan = MemoryManager.scan
_bind = MemoryManager.bind
_find = MemoryLog.find_by_timestamp
_fill = MemoryLog.fill
_replace = MemoryLog.replace


def forgets_fences(self: Any) -> None:
    """Once the store was closed."""
    for log in self._state.logs.values():
        log.epoch = -1
    _shut(self)


def keeps_what_was_replaced(self: Any, segment: Any) -> None:
    before = list(self._segments)
    _replace(self, segment)
    self._segments[:] = before


def shows_what_was_not_committed(self: Any, segment: Any, messages: Any) -> None:
    _fill(self, segment, messages)
    number = self._closed(segment.base)
    self._segments[number] = segment.replaces = segment


def lets_old_leaders_write(self: Any) -> MemoryLog:
    if self._closed or self._log.gone:
        self._refuse()
    return self._log  # type: ignore[no-any-return]


def lets_old_leaders_open(self: Any, epoch: int) -> None:
    self.epoch = epoch


def loses_the_order(self: Any, messages: Sequence[Any]) -> tuple[int, int]:
    """Of what is sent together."""
    places = _append(self, messages)
    self._segments[-1].messages[-2:] = self._segments[-1].messages[-2:][::-1]
    return places


def appends_half(self: Any, messages: Sequence[Any]) -> tuple[int, int]:
    """Where what comes later is refused."""
    places = [_append(self, [message]) for message in messages]
    return places[0][0], places[-1][1]


def makes_topics_anew_with_old_messages(self: Any, place: Place, *args: Any) -> MemoryLog:
    old = self.logs.get(self._newest.get((place.topic, place.broker)))
    kept = None if old is None else copy(old._segments)
    log = _open_log(self, place, *args)
    if kept and log is not old:
        log._segments, log.next = kept, old.next
    return log


def begins_again_once_opened(self: Any, place: Place, *args: Any) -> MemoryLog:
    """Where nothing is left."""
    log = _open_log(self, place, *args)
    if log.start >= log.next:
        log.next = log._segments[-1].base = 0
    return log


async def deletes_what_is_named_alike(self: Any, places: Iterable[Place], *, epoch: int) -> None:
    names = tuple(str(place.topic) for place in places)
    for log in list(self._state.logs.values()):
        if str(log.place.topic).startswith(names):
            log.check(epoch)
            self._state.drop_log(log.place.incarnation)


async def binds_anew_each_time(self: Any, topic: Topic, broker: str, **options: Any) -> Place:
    place = await _bind(self, topic, broker, **options)
    with self._state.lock:
        self._state.incarnations += 1
        return place._replace(incarnation=self._state.incarnations)


async def binds_for_anybody(self: Any, topic: Topic, broker: str, **_options: Any) -> Place:
    return await _bind(self, topic, broker)


def opens_at_any_broker(self: Any, place: Place, *args: Any) -> MemoryLog:
    info = self.topic(place.topic)
    if info is not None and place not in info.places:
        place = next((each for each in info.places if each.incarnation == place.incarnation), place)
    return _open_log(self, place, *args)


def drops_tombstones(self: Any, revision: int, writes: Mapping[str, Any], values: Mapping[str, Versioned]) -> None:
    _record(self, revision, {key: value for key, value in writes.items() if value is not None}, values)


def tells_changes_of_others(self: Any, place: Any, _prefixes: Any, values: Mapping[str, Versioned]) -> Any:
    return _since(self, place, ("",), values)


_since = MemoryChanges._since


async def compares_the_first_key_only(self: Any, writes: Any, expect: Any = None, **options: Any) -> int:
    return await _commit(self, writes, dict(list((expect or {}).items())[:1]), **options)


async def writes_half_of_a_conflict(self: Any, writes: Any, expect: Any = None, **options: Any) -> int:
    try:
        return await _commit(self, writes, expect, **options)
    except ConflictError:
        await _commit(self, dict(list(writes.items())[:1]))
        raise


async def ends_pages_early(self: Any, prefix: str, *, after: str = "", limit: int) -> dict[str, Versioned]:
    return await _scan(self, prefix, after=after, limit=max(1, limit - 1))


async def begins_epochs_again(self: Any, lease: Any) -> None:
    """Once a lease was given up."""
    row = self._state.leases.get(lease.name)
    if row is not None and row.epoch == lease.epoch:
        self._state.leases[lease.name] = LeaseRow(row.holder, 0, row.ttl, False, row.version + 1)


async def gives_a_lease_to_whoever_saw_it(self: Any, name: str, holder: str, ttl: float, **options: Any) -> Any:
    row = self._state.leases.get(name)
    if options.get("over") is not None and row is not None:
        options["over"] = row.info(name)
    return await _acquire(self, name, holder, ttl, **options)


def passes_over_a_message(self: Any, position: int, max_bytes: int, max_messages: int | None) -> Pulled:
    """At the end of each page."""
    pulled = _pull(self, position, max_bytes, max_messages)
    return pulled._replace(last=pulled.last + 1) if pulled.last + 1 < self.next and len(pulled.data) else pulled


def gives_more_than_asked(self: Any, position: int, max_bytes: int, _max_messages: int | None) -> Pulled:
    return _pull(self, position, max_bytes, None)


def trims_too_much(self: Any, before: int) -> int:
    while len(self._segments) > 1 and self._segments[0].base < before:
        del self._segments[0]
    if before > self.start:
        self.roll()
        del self._segments[:-1]
    return self.start  # type: ignore[no-any-return]


def begins_again_once_trimmed(self: Any, before: int) -> int:
    """Where nothing is left."""
    start = _trim(self, before)
    if before >= self.next:
        self.next = self._segments[-1].base = start = 0
    return start


_trim = MemoryLog.trim


def forgets_changes_in_silence(self: Any) -> None:
    for row in list(self._rows)[:-CHANGES_KEPT]:
        del self._rows[row]


def goes_on_once_closed(_self: Any) -> None:
    pass


def finds_what_is_newer_only(self: Any, timestamp: int, start: int) -> Any:
    return _find(self, timestamp + 1, start)


def keeps_what_it_refused(self: Any, messages: Sequence[Any]) -> Any:
    """A write that failed has appended all the same."""
    if self._faults.next_write_fails:
        MemoryTopic.send_nowait(self, messages)
    return _send(self, messages)


MUTANTS = {
    function.__name__: Mutant(owner, method, function, f"test_{file}.py")
    for owner, method, function, file in (
        (MemoryBroker, "shut", forgets_fences, "epochs"),
        (MemoryTopic, "_use", lets_old_leaders_write, "epochs"),
        (MemoryLog, "check", lets_old_leaders_open, "epochs"),
        (MemoryLog, "append", loses_the_order, "sending"),
        (MemoryLog, "append", appends_half, "sending"),
        (MemoryState, "open_log", makes_topics_anew_with_old_messages, "incarnations"),
        (MemoryBroker, "delete", deletes_what_is_named_alike, "isolation"),
        (MemoryManager, "bind", binds_anew_each_time, "bindings"),
        (MemoryManager, "bind", binds_for_anybody, "bindings"),
        (MemoryState, "open_log", opens_at_any_broker, "bindings"),
        (MemoryChanges, "record", drops_tombstones, "changes"),
        (MemoryChanges, "_since", tells_changes_of_others, "changes"),
        (MemoryManager, "commit", compares_the_first_key_only, "values"),
        (MemoryManager, "commit", writes_half_of_a_conflict, "values"),
        (MemoryManager, "scan", ends_pages_early, "values"),
        (MemoryManager, "release", begins_epochs_again, "leases"),
        (MemoryManager, "acquire", gives_a_lease_to_whoever_saw_it, "leases"),
        (MemoryLog, "pull", passes_over_a_message, "reading"),
        (MemoryLog, "pull", gives_more_than_asked, "reading"),
        (MemoryLog, "trim", trims_too_much, "trimming"),
        (MemoryLog, "trim", begins_again_once_trimmed, "trimming"),
        (MemoryState, "open_log", begins_again_once_opened, "trimming"),
        (MemoryChanges, "_forget", forgets_changes_in_silence, "changes"),
        (MemoryBroker, "shut", goes_on_once_closed, "epochs"),
        (MemoryLog, "find_by_timestamp", finds_what_is_newer_only, "segments"),
        (FaultyTopic, "send_nowait", keeps_what_it_refused, "faults"),
        (MemoryLog, "replace", keeps_what_was_replaced, "rewriting"),
        (MemoryLog, "fill", shows_what_was_not_committed, "rewriting"),
    )
}


class Failures:
    """A plugin of pytest that keeps the names of the tests that failed."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names.append(report.nodeid.rpartition("::")[2])


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    with mock.patch.object(mutant.owner, mutant.method, mutant.instead):
        yield


def run(name: str, mutant: Mutant) -> list[str]:
    """The tests that fail with a mutant; the first few of them."""
    failures = Failures()
    path = str(FOLDER / mutant.file)
    with planted(mutant), redirect_stdout(StringIO()):
        options = ["-q", "-k", "asyncio", "--maxfail=2", "--tb=no", "-c", "/dev/null", "--rootdir", str(FOLDER)]
        pytest.main([*NEEDED_PLUGINS, path, "--htp", f"memory:{name}?brokers=3", *options], [failures])
    memory.reset(name)
    return failures.names


if __name__ == "__main__":
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    gc.freeze()  # pytest collects at the end of each run
    wanted = sys.argv[1:] or list(MUTANTS)
    print(json.dumps({name: run(name, MUTANTS[name]) for name in wanted}))
