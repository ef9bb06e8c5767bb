"""One sum for all that a process keeps: limits, what each kind is sure of, caches that give way, several servers."""

from __future__ import annotations

import gc
import os

import pytest

from kclient.memory_ledger import CacheAccount, MemoryLedger, MemoryPart, process_memory

MB = 1 << 20


class Cache:
    """Gives up what it holds."""

    def __init__(self, owner: MemoryLedger | MemoryPart, share: int = 2, most: int = 1 << 62) -> None:
        self.asked = 0
        self.account: CacheAccount = owner.cache("cache", share, self._give_up, most)

    def fill(self, size: int) -> bool:
        if not self.account.has_room(size):
            return False
        self.account.add(size)
        return True

    def _give_up(self) -> None:
        self.asked += 1
        self.account.add(-self.account.held)


class FakeConnections:
    """What the connections of a server hold."""

    def __init__(self, part: MemoryPart, most: int = 0) -> None:
        self.part = part
        self.held = 0
        self.most = most
        self.waits = False
        self.told: list[str] = []
        part.connections = self

    @property
    def spare(self) -> int:
        return self.part.left(self.most) - self.held

    def refresh(self) -> None:
        self.told.append("refresh")

    def others_freed(self) -> None:
        self.told.append("others freed")

    def others_wait(self) -> None:
        self.told.append("others wait")


def test_what_may_be_refused_has_a_limit() -> None:
    part = MemoryLedger().part(64 * MB)
    groups = part.limited("groups", 4)
    assert groups.has_room(16 * MB)
    assert not groups.has_room(16 * MB + 1)
    groups.add(15 * MB)
    assert groups.has_room(MB)
    assert not groups.has_room(2 * MB)
    groups.add(5 * MB)  # it is there, whether there was room or not
    assert groups.held == 20 * MB
    assert not groups.has_room(1)
    assert groups.has_room(0)
    assert groups.has_room(-MB)


def test_all_that_may_be_refused_has_a_limit_together() -> None:
    part = MemoryLedger().part(64 * MB)
    accounts = [part.limited(name, 4) for name in "abc"]
    for account in accounts[:2]:
        account.add(12 * MB)
    assert not accounts[2].has_room(2 * MB)
    assert accounts[2].has_room(MB), "of which it is sure"
    accounts[0].add(-4 * MB)
    assert accounts[2].has_room(2 * MB)


def test_what_one_is_sure_of_is_not_there_for_others() -> None:
    part = MemoryLedger().part(64 * MB)
    connections = FakeConnections(part)
    groups = part.limited("groups", 4)
    connections.held = 62 * MB
    assert connections.spare == MB
    assert groups.has_room(MB)
    assert not groups.has_room(3 * MB)
    groups.add(MB)
    assert connections.spare == MB
    groups.add(MB)
    assert connections.spare == 0
    connections.held -= MB
    assert groups.has_room(MB)


def test_what_cannot_be_refused_is_counted() -> None:
    part = MemoryLedger().part(64 * MB)
    connections = FakeConnections(part)
    groups, logs = part.limited("groups", 4), part.account("logs")
    logs.add(60 * MB)
    assert (part.beside(), connections.spare) == (61 * MB, 3 * MB)
    assert not groups.has_room(5 * MB)
    logs.add(60 * MB)
    assert connections.spare == -57 * MB
    assert groups.has_room(MB), "of which it is sure"
    logs.close()
    assert groups.has_room(5 * MB)


def test_caches_take_half_of_what_is_left_and_give_way() -> None:
    part = MemoryLedger().part(64 * MB)
    connections = FakeConnections(part)
    groups = part.limited("groups", 2)
    cache = Cache(part)
    assert not cache.fill(33 * MB), "half of all is its limit"
    connections.held = 43 * MB
    assert not cache.fill(11 * MB)
    assert cache.fill(10 * MB)
    assert not cache.fill(6 * MB)
    assert groups.has_room(10 * MB)
    assert not cache.asked
    assert groups.has_room(15 * MB)
    assert cache.asked == 1
    assert not cache.account.held
    assert not groups.has_room(22 * MB)
    assert cache.asked == 1, "it has nothing any more"


def test_a_cache_without_any_server_has_its_own_limit() -> None:
    ledger = MemoryLedger()
    cache = Cache(ledger, share=8, most=4 * MB)
    assert cache.fill(4 * MB)
    assert not cache.fill(1)
    part = ledger.part(16 * MB)
    cache.account.add(-4 * MB)
    assert cache.fill(2 * MB)
    assert not cache.fill(1)
    part.close()
    assert cache.fill(2 * MB)


def test_connections_are_told_of_what_matters() -> None:
    part = MemoryLedger().part(64 * MB)
    connections = FakeConnections(part)
    logs = part.account("logs")
    connections.told.clear()
    for _ in range(100):
        logs.add(1000)
    assert 1 <= len(connections.told) <= 10
    connections.told.clear()
    logs.add(10 * MB)
    logs.add(-10 * MB)
    assert connections.told == ["refresh"] * 2


@pytest.mark.slow
def test_an_account_that_nobody_has_any_more_counts_no_more() -> None:
    ledger = MemoryLedger()
    part = ledger.part(64 * MB)
    logs = part.account("logs")
    logs.add(10 * MB)
    assert part.beside() == 10 * MB
    del logs
    gc.collect()
    assert part.beside() == 0
    assert not ledger.accounts()


@pytest.mark.slow
def test_several_servers_share_what_the_greatest_may_have() -> None:
    ledger = MemoryLedger()
    large, small = ledger.part(64 * MB), ledger.part(16 * MB)
    first, second = FakeConnections(large), FakeConnections(small)
    assert ledger.total == 64 * MB
    first.held = 56 * MB
    assert second.spare == 8 * MB
    assert small.shares
    first.held = 40 * MB
    assert second.spare == 16 * MB
    assert not small.shares
    small.account("logs").add(10 * MB)
    gc.collect()  # nobody has it
    kept = small.account("logs")
    kept.add(10 * MB)
    assert second.spare == 6 * MB
    assert first.spare == 14 * MB
    ledger.cache("of the process", 8, lambda: None).add(MB)
    large.close()
    assert (ledger.total, ledger.alone) == (16 * MB, True)
    assert second.spare == 6 * MB


def test_what_idle_servers_are_sure_of_does_not_grow_with_their_number() -> None:
    ledger = MemoryLedger()
    part = ledger.part(64 * MB)
    connections = FakeConnections(part)
    topics = part.limited("topics", 4)
    idle = [ledger.part(64 * MB) for _ in range(31)]
    accounts = [each.limited(name, 4) for each in idle for name in "abcde"]
    assert connections.spare == 64 * MB - topics.sure - sum(account.sure for account in accounts)
    assert connections.spare > 58 * MB
    assert topics.has_room(16 * MB)
    connections.held = 64 * MB
    assert topics.has_room(topics.sure)
    assert not topics.has_room(topics.sure + 1)
    for each in idle:
        each.close()
    assert topics.has_room(MB), "of which one alone is sure"


def test_what_is_of_the_process_is_of_no_server_with_a_smaller_total() -> None:
    ledger = MemoryLedger()
    large, small = ledger.part(64 * MB), ledger.part(16 * MB)
    first, second = FakeConnections(large), FakeConnections(small)
    indexes = ledger.account("indexes")
    indexes.add(32 * MB)
    assert (first.spare, second.spare) == (32 * MB, 16 * MB)
    indexes.add(24 * MB)
    assert (first.spare, second.spare) == (8 * MB, 8 * MB)


def test_who_waits_for_what_others_hold_is_told_when_they_hold_less() -> None:
    ledger = MemoryLedger()
    parts = [ledger.part(64 * MB) for _ in range(2)]
    first, second = (FakeConnections(part) for part in parts)
    first.held = 60 * MB
    assert second.spare == 4 * MB
    second.waits = True
    first.told.clear()
    ledger.begin_to_wait(parts[1])
    assert first.told == ["others wait"]
    assert ledger.waits_beside(parts[0])
    assert not ledger.waits_beside(parts[1])
    second.told.clear()
    ledger.freed(parts[0])
    assert second.told == ["others freed"]
    parts[0].close()
    assert second.told[-1] == "others freed"


class Loop:
    """The event loop of another thread."""

    def __init__(self) -> None:
        self.is_current = False
        self.ended = False
        self.posted: list[object] = []

    def post(self, function: object) -> bool:
        if not self.ended:
            self.posted.append(function)
        return not self.ended


def test_servers_of_other_threads_are_told_there() -> None:
    ledger = MemoryLedger()
    here, there = ledger.part(64 * MB), ledger.part(64 * MB)
    mine, theirs = FakeConnections(here), FakeConnections(there)
    there.loop = loop = Loop()
    mine.held = 60 * MB
    assert theirs.spare == 4 * MB
    theirs.waits = True
    ledger.freed(here)
    ledger.freed(here)
    assert not theirs.told
    assert len(loop.posted) == 1, "once, until it has been heard"
    loop.posted.pop()()  # type: ignore[operator]
    assert theirs.told == ["others freed"]
    ledger.freed(here)
    assert len(loop.posted) == 1


def test_a_loop_that_stands_still_gathers_no_calls() -> None:
    ledger = MemoryLedger()
    here, there = ledger.part(64 * MB), ledger.part(64 * MB)
    mine, theirs = FakeConnections(here), FakeConnections(there)
    there.loop = loop = Loop()
    logs = here.account("logs")
    mine.held = 60 * MB
    assert theirs.spare == 4 * MB
    theirs.waits = here.shares = True
    for _ in range(100):
        logs.add(MB)
        ledger.freed(here)
        ledger.begin_to_wait(here)
        logs.add(-MB)
    assert len(loop.posted) == 3
    while loop.posted:
        loop.posted.pop(0)()  # type: ignore[operator]
    assert sorted(theirs.told) == ["others freed", "others wait", "refresh"]
    logs.add(MB)
    assert len(loop.posted) == 1, "it is told again"


def test_what_a_signal_handler_cut_off_is_told_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else those that wait for memory in another server would never hear that there is some."""
    ledger = MemoryLedger()
    here, there = ledger.part(64 * MB), ledger.part(64 * MB)
    mine, theirs = FakeConnections(here), FakeConnections(there)
    there.loop = loop = Loop()
    mine.held = 60 * MB
    assert theirs.spare == 4 * MB
    theirs.waits = True

    def interrupted(function: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "post", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.freed(here)
    ledger.freed(here)
    assert len(loop.posted) == 1
    loop.posted.pop()()  # type: ignore[operator]
    assert theirs.told == ["others freed"]


def test_a_server_whose_loop_has_ended_holds_nothing() -> None:
    ledger = MemoryLedger()
    here, there = ledger.part(64 * MB), ledger.part(128 * MB)
    mine, theirs = FakeConnections(here), FakeConnections(there)
    there.loop = loop = Loop()
    theirs.held = 120 * MB
    ledger.favour(object(), there)
    assert mine.spare == 8 * MB
    loop.ended = True
    ledger.begin_to_wait(here)
    assert (ledger.alone, ledger.total, ledger.favoured) == (True, 64 * MB, None)
    assert mine.spare == 64 * MB


def test_a_server_whose_loop_has_ended_takes_no_room_from_what_may_be_refused() -> None:
    now = 100.0
    ledger = MemoryLedger(lambda: now)
    here, there = ledger.part(64 * MB), ledger.part(64 * MB)
    connections = [FakeConnections(part) for part in (here, there)]
    there.loop = loop = Loop()
    topics = here.limited("topics", 4)
    connections[1].held = 60 * MB
    assert not topics.has_room(10 * MB)
    while loop.posted:
        loop.posted.pop()()  # type: ignore[operator]
    loop.ended = True
    assert not topics.has_room(10 * MB), "it ran just now"
    now = 101.0
    assert topics.has_room(10 * MB)
    assert ledger.parts() == [here]


def test_the_favour_goes_on_from_a_server_whose_loop_stands_still() -> None:
    """It may hold what it holds for ever, and the others go on in favour, one after the other."""
    now = 100.0
    ledger = MemoryLedger(lambda: now)
    here, there = ledger.part(64 * MB), ledger.part(64 * MB)
    mine, theirs = FakeConnections(here), FakeConnections(there)
    there.loop = loop = Loop()
    theirs.held = 60 * MB
    ledger.favour(favoured := object(), there)
    ledger.look_after()
    asked = len(loop.posted)
    for seconds in (0.5, 1.0, 5.0, 9.9):
        now = 100.0 + seconds
        assert not ledger.look_after()
        assert ledger.favoured is favoured
    assert len(loop.posted) == asked, "once"
    now = 110.0
    assert not ledger.look_after()
    assert ledger.favoured is None
    assert mine.spare == 4 * MB, "what it holds is there"
    while loop.posted:
        loop.posted.pop()()  # type: ignore[operator]
    ledger.favour(favoured, there)
    now = 150.0
    ledger.look_after()
    assert ledger.favoured is favoured, "it runs again"
    now = 160.0
    loop.ended = True
    ledger.look_after()
    assert (ledger.favoured, ledger.parts()) == (None, [here])


@pytest.mark.slow
def test_a_server_that_nobody_closed_counts_no_more_once_it_is_collected() -> None:
    ledger = MemoryLedger()
    here, there = ledger.part(16 * MB), ledger.part(64 * MB)
    here.loop = loop = Loop()
    connections = FakeConnections(here)
    logs = there.account("logs")
    logs.add(60 * MB)
    assert (ledger.total, ledger.alone, connections.spare) == (64 * MB, False, 4 * MB)
    loop.posted.clear()
    del there, logs
    gc.collect()
    assert (ledger.total, ledger.alone, ledger.count, connections.spare) == (16 * MB, True, 1, 16 * MB)
    assert loop.posted == [connections.others_freed]


def test_caches_of_other_threads_give_way_there() -> None:
    ledger = MemoryLedger()
    part = ledger.part(64 * MB)
    FakeConnections(part)
    asked: list[int] = []
    loop = Loop()
    cache = ledger.cache("theirs", 2, lambda: asked.append(1), loop=loop)
    cache.add(MB)
    assert not ledger.relieve()
    assert not asked
    assert not ledger.relieve()
    assert len(loop.posted) == 1, "once, until it has been heard"
    loop.posted.pop()()  # type: ignore[operator]
    assert asked == [1]
    assert not ledger.relieve()
    assert len(loop.posted) == 1
    loop.is_current = True
    assert ledger.relieve()
    assert asked == [1, 1]


def test_a_cache_whose_loop_has_ended_is_given_up_by_whoever_needs_it() -> None:
    ledger = MemoryLedger()
    part = ledger.part(64 * MB)
    connections = FakeConnections(part)
    asked: list[int] = []
    loop = Loop()
    cache = ledger.cache("theirs", 2, lambda: asked.append(1), loop=loop)
    cache.add(MB)
    loop.ended = True
    assert ledger.relieve()
    assert asked == [1]
    assert connections.spare == 64 * MB
    assert not ledger.accounts()


def test_a_cache_whose_loop_ends_before_it_is_heard_is_given_up_some_time_later() -> None:
    now = 100.0
    ledger = MemoryLedger(lambda: now)
    part = ledger.part(64 * MB)
    connections = FakeConnections(part)
    loop = Loop()
    cache = ledger.cache("theirs", 2, lambda: None, loop=loop)
    cache.add(MB)
    assert not ledger.relieve()
    assert len(loop.posted) == 1
    loop.ended = True
    now = 109.9
    assert not ledger.relieve(), "it may be slow"
    now = 110.0
    assert ledger.relieve()
    assert connections.spare == 64 * MB
    assert not ledger.accounts()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_begins_with_nothing() -> None:
    part = process_memory().part(64 * MB)
    part.account("logs").add(MB)
    child = os.fork()
    if not child:
        made = process_memory.cache_info().currsize  # two threads that make it would have one each
        os._exit(0 if made and not process_memory().parts() and not process_memory().accounts() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert process_memory() is part.ledger
    part.close()
