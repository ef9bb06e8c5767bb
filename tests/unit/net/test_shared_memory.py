"""Connections beside what else the process keeps: accounts that grow, and the connections of other servers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.memory_ledger import MemoryLedger
from kclient.net.memory_budget import ALLOWANCE, MemoryBudget, Share
from tests.example_budget import examples

MB = 1 << 20


class Client:
    """Asks for what it needs, keeps it, and gives it back."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.woken = 0
        self.budget = budget
        self.share: Share = budget.share(self._wake)

    def _wake(self) -> None:
        self.woken += 1


def budget_of(ledger: MemoryLedger, total: int = 64 * MB) -> MemoryBudget:
    return MemoryBudget(total, None, ledger.part(total))


def test_an_account_that_grows_makes_connections_wait() -> None:
    budget = budget_of(MemoryLedger())
    logs = budget.part.account("logs")
    first, second, third, late = (Client(budget) for _ in range(4))
    assert first.share.take(12 * MB)
    logs.add(20 * MB)
    assert second.share.take(12 * MB)
    assert third.share.take(5 * MB), "in favour"
    assert not late.share.take(5 * MB)
    assert late.share.take(ALLOWANCE), "small things are always taken"
    assert budget.used + logs.held <= budget.total
    logs.add(-15 * MB)
    assert late.woken == 1
    assert late.share.take(5 * MB)


def test_connections_have_something_however_much_is_kept_beside_them() -> None:
    """Beside the one in favour there is room for others that want little."""
    budget = budget_of(MemoryLedger())
    logs = budget.part.account("logs")
    logs.add(100 * MB)
    assert budget.limit == 20 * MB
    clients = [Client(budget) for _ in range(4)]
    assert clients[0].share.take(16 * MB)
    assert clients[1].share.take(3 * MB)
    assert clients[2].share.take(16 * MB), "in favour"
    assert not clients[3].share.take(2 * MB)
    clients[0].share.close()
    assert clients[3].woken == 1
    assert clients[3].share.take(MB)


def test_what_may_be_refused_is_when_connections_hold_all() -> None:
    budget = budget_of(MemoryLedger())
    groups = budget.part.limited("groups", 4)
    hogs = [Client(budget) for _ in range(3)]
    assert all(hog.share.take(15 * MB) for hog in hogs)
    assert groups.has_room(MB), "of which it is sure"
    assert not groups.has_room(3 * MB)
    hogs[0].share.close()
    assert groups.has_room(3 * MB)


def test_caches_are_given_up_before_anybody_waits() -> None:
    budget = budget_of(MemoryLedger())
    cache = budget.part.cache("cache", 2, lambda: cache.add(-cache.held))
    assert cache.has_room(20 * MB)
    cache.add(20 * MB)
    clients = [Client(budget) for _ in range(3)]
    assert all(client.share.take(15 * MB) for client in clients)
    assert budget.favoured is None
    assert not cache.held
    assert not budget.waiting
    assert not cache.has_room(4 * MB), "connections hold nearly all"


def test_what_a_cache_gives_up_wakes_who_waits() -> None:
    budget = budget_of(MemoryLedger())
    cache = budget.part.cache("cache", 2, lambda: cache.add(-cache.held))
    hogs = [Client(budget) for _ in range(3)]
    assert all(hog.share.take(11 * MB) for hog in hogs)
    hogs[0].share.keep(10 * MB)
    cache.add(16 * MB)
    assert budget.favours(hogs[0].share)
    assert not hogs[1].share.may_begin()
    assert not cache.held
    assert hogs[1].woken == 1
    assert hogs[1].share.may_begin()


def test_two_servers_share_what_one_of_them_may_hold() -> None:
    ledger = MemoryLedger()
    first, second = budget_of(ledger), budget_of(ledger)
    hogs = [Client(first) for _ in range(3)]
    assert all(hog.share.take(15 * MB) for hog in hogs)
    quiet, other = Client(second), Client(second)
    assert quiet.share.take(ALLOWANCE)
    assert other.share.take(10 * MB), "in favour, of both"
    assert not quiet.share.take(MB)
    assert not hogs[0].share.take(MB)
    assert first.used + second.used <= 64 * MB
    assert first.favoured is second.favoured is other.share
    hogs[1].share.close()
    assert quiet.woken
    assert quiet.share.take(MB)


def test_one_in_favour_elsewhere_is_followed_by_the_next() -> None:
    ledger = MemoryLedger()
    first, second = budget_of(ledger), budget_of(ledger)
    hogs = [Client(first) for _ in range(3)]
    assert all(hog.share.take(15 * MB) for hog in hogs)
    favoured, late = Client(first), Client(second)
    assert favoured.share.take(10 * MB)
    assert not late.share.take(10 * MB)
    assert late.woken == 0
    favoured.share.add(-10 * MB)
    assert late.woken == 1
    assert late.share.take(10 * MB)
    assert second.favoured is late.share


def test_a_server_that_closes_leaves_all_to_the_others() -> None:
    ledger = MemoryLedger()
    first, second = budget_of(ledger), budget_of(ledger)
    hogs = [Client(first) for _ in range(3)]
    assert all(hog.share.take(15 * MB) for hog in hogs)
    favoured, late = Client(first), Client(second)
    assert favoured.share.take(10 * MB)
    assert not late.share.take(10 * MB)
    first.part.close()
    assert late.woken == 1
    assert late.share.take(10 * MB)
    assert second.favoured is None
    assert second.limit == 64 * MB - 16 * MB - ALLOWANCE


def test_what_idle_connections_may_take_unasked_does_not_grow_with_the_number_of_servers() -> None:
    ledger = MemoryLedger()
    budgets = [budget_of(ledger, 16 * MB)]
    clients = [Client(budgets[0]) for _ in range(64)]
    alone = budgets[0].spare
    assert alone == budgets[0].limit == 8 * MB
    for count in range(2, 9):
        budgets.append(budget_of(ledger, 16 * MB))
        clients += [Client(budgets[-1]) for _ in range(64)]
        ledger.changed()
        assert all(alone <= budget.spare < alone + 10 for budget in budgets), "but for the rounding"
        assert all(64 * budget.allowance <= 4 * MB // count for budget in budgets)
    topics = budgets[-1].part.limited("topics", 4)
    assert topics.has_room(4 * MB)
    assert all(client.share.take(budgets[0].allowance) for client in clients)
    for budget in budgets[1:]:
        budget.part.close()
    assert budgets[0].limit == 8 * MB
    assert budgets[0].allowance == ALLOWANCE


class Loop:
    """The event loop of another thread, which has run all that was posted, until it ends."""

    is_current = False
    ended = False

    def post(self, function: Callable[[], object]) -> bool:
        if not self.ended:
            function()
        return not self.ended


@pytest.mark.parametrize("total", [64 * MB, 16 * MB])
def test_a_server_whose_loop_ends_while_another_waits_leaves_all_to_that(total: int) -> None:
    """Also where that waits for the favour alone, since what it may hold is used up by itself."""
    now = 100.0
    ledger = MemoryLedger(lambda: now)
    first, second = budget_of(ledger), budget_of(ledger, total)
    first.part.loop = loop = Loop()
    hogs = [Client(first) for _ in range(3)]
    assert all(hog.share.take(15 * MB) for hog in hogs)
    assert Client(first).share.take(10 * MB), "in favour"
    clients = [Client(second) for _ in range(3)]
    for client in clients:
        client.share.add(4 * MB)
    late = Client(second)
    assert not late.share.take(total // 4 - MB)
    second.look_beside()
    assert not late.woken
    loop.ended = True
    now = 101.0
    second.look_beside()
    assert ledger.parts() == [second.part]
    assert late.woken == 1
    assert late.share.take(total // 4 - MB)


def test_what_others_hold_leaves_a_server_with_a_smaller_total_alone() -> None:
    ledger = MemoryLedger()
    large, small = budget_of(ledger), budget_of(ledger, 16 * MB)
    hogs = [Client(large) for _ in range(2)]
    assert all(hog.share.take(14 * MB) for hog in hogs)
    client = Client(small)
    assert client.share.take(4 * MB)
    assert small.limit == 16 * MB - 4 * MB - ALLOWANCE
    large.refresh()
    assert large.limit == 64 * MB - 16 * MB - 2 * ALLOWANCE - small.held


def test_whose_memory_is_waited_for_is_told() -> None:
    """It answers what waits without need, and closes who stalls."""
    ledger = MemoryLedger()
    first, second = budget_of(ledger), budget_of(ledger)
    short: list[str] = []
    first.on_short = lambda: short.append("first")
    second.on_short = lambda: short.append("second")
    hogs = [Client(first) for _ in range(3)]
    assert all(hog.share.take(15 * MB) for hog in hogs)
    assert Client(first).share.take(3 * MB), "in favour"
    late = Client(second)
    assert not late.share.take(10 * MB)
    assert sorted(short) == ["first", "second"]
    assert first.waited_for
    assert second.waited_for
    late.share.close()
    assert not first.waited_for


def test_who_waits_for_its_own_server_alone_is_no_matter_of_others() -> None:
    ledger = MemoryLedger()
    large, small = budget_of(ledger), budget_of(ledger, 16 * MB)
    short: list[str] = []
    large.on_short = lambda: short.append("large")
    hogs = [Client(small) for _ in range(4)]
    assert [hog.share.take(4 * MB) for hog in hogs] == [True, True, True, False]
    assert not short
    assert not large.waited_for
    assert small.waited_for


def drained(clients: list[Client]) -> bool:
    """Those that hold something end what they have in hand; False if there is none."""
    holders = [client for client in clients if client.share.held]
    for client in holders:
        client.share.add(-client.share.held)
    return bool(holders)


Wish = tuple[int, int]


@pytest.mark.parametrize("servers", [1, 2, 3])
@examples(100)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 16 * MB)), min_size=1, max_size=60),
    st.lists(st.integers(-8 * MB, 8 * MB), max_size=20),
)
def test_the_total_is_kept_and_nobody_waits_for_ever(servers: int, wishes: list[Wish], changes: list[int]) -> None:
    """Whatever is asked for, in whatever order, on however many servers, while an account grows and shrinks."""
    ledger = MemoryLedger()
    budgets = [budget_of(ledger) for _ in range(servers)]
    groups = budgets[0].part.limited("groups", 4)
    clients = [Client(budgets[number % servers]) for number in range(9)]
    queues: list[deque[int]] = [deque() for _ in clients]
    for number, size in wishes:
        queues[number].append(size)
    asking = set(range(len(clients)))
    later = iter(changes)
    while any(queues):
        got = False
        for number, client in enumerate(clients):
            if queues[number] and (number in asking or client.woken):
                client.woken = 0
                asking.discard(number)
                if client.share.take(queues[number][0]):
                    got = True
                    queues[number].popleft()
                    asking.add(number)
            change = max(next(later, 0), -groups.held)
            if groups.has_room(change):
                groups.add(change)
            used = sum(budget.used for budget in budgets)
            assert used + max(groups.held, groups.sure) <= 64 * MB
        if not got:
            assert drained(clients), "nobody holds anything, and nobody gets anything"
    for client in clients:
        client.share.close()
    assert [budget.used for budget in budgets] == [0] * servers
    assert ledger.favoured is None


def test_a_budget_of_its_own_is_of_no_process() -> None:
    first, second = MemoryBudget(16 * MB), MemoryBudget(16 * MB)
    assert first.ledger is not second.ledger
    called: list[Callable[[], object]] = []
    first.on_short = lambda: called.append(first.refresh)
    clients = [Client(second) for _ in range(4)]
    assert [client.share.take(4 * MB) for client in clients] == [True, True, True, False]
    assert not called
