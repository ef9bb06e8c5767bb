"""The budget of memory: small things are taken, no connection takes more than its part, somebody always finishes."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.net.memory_budget import ALLOWANCE, LEAST_ALLOWANCE, MemoryBudget, Share, TooMuchMemoryError
from tests.example_budget import examples

MB = 1 << 20


class Client:
    """Asks for what it needs, keeps it, and gives it back."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.woken = 0
        self.share: Share = budget.share(self._wake)

    def _wake(self) -> None:
        self.woken += 1


def test_small_things_are_always_taken() -> None:
    budget = MemoryBudget(16 * MB)
    hogs = [Client(budget) for _ in range(4)]
    assert [hog.share.take(4 * MB) for hog in hogs] == [True, True, True, False], "the third is the favoured one"
    quiet = Client(budget)
    assert quiet.share.take(ALLOWANCE)
    assert not quiet.share.take(1)


def test_one_connection_has_a_quarter_at_most() -> None:
    budget = MemoryBudget(16 * MB)
    client = Client(budget)
    with pytest.raises(TooMuchMemoryError, match=r"one connection may hold 4194304 \(a quarter of connections.max.mem"):
        client.share.take(4 * MB + 1)
    assert client.share.take(3 * MB)
    assert not client.share.take(2 * MB), "until it gives back what it holds"
    with pytest.raises(TooMuchMemoryError):
        client.share.take(2 * MB, last=True)
    assert budget.used == 3 * MB


def test_who_waits_is_woken_by_what_comes_free() -> None:
    budget = MemoryBudget(16 * MB)
    hogs = [Client(budget) for _ in range(3)]
    for hog in hogs:
        assert hog.share.take(4 * MB)
    late = Client(budget)
    assert not late.share.take(MB)
    assert late.woken == 0
    hogs[0].share.close()
    assert late.woken == 1
    assert late.share.take(MB)
    hogs[1].share.close()
    assert budget.used == 5 * MB


def test_what_a_closed_connection_held_is_free_and_stays_free() -> None:
    budget = MemoryBudget(16 * MB)
    client = Client(budget)
    client.share.take(2 * MB, request=True)
    client.share.close()
    assert (budget.used, budget.requests) == (0, 0)
    client.share.add(-MB)  # what was under way for it ends later
    assert client.share.take(MB)
    client.share.close()
    assert (budget.used, budget.requests) == (0, 0)


def test_requests_have_a_limit_of_their_own() -> None:
    """`queued.max.request.bytes`: what exceeds it is received to its end, and then no more."""
    budget = MemoryBudget(64 * MB, requests=2 * MB)
    first, second, third = (Client(budget) for _ in range(3))
    assert first.share.take(3 * MB, request=True)
    assert second.share.take(3 * MB, request=True), "the favoured one goes on"
    assert not third.share.take(3 * MB, request=True)
    assert third.share.take(3 * MB), "replies do not count"
    first.share.close()
    second.share.close()
    assert third.share.take(3 * MB, request=True)


@examples(200)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4 * MB)), min_size=1, max_size=60))
def test_nobody_waits_for_ever(wishes: list[tuple[int, int]]) -> None:
    """Whatever is asked for, in whatever order: the total is kept, and all get what they asked for in the end."""
    budget = MemoryBudget(16 * MB)
    clients = [Client(budget) for _ in range(8)]
    queues: list[deque[int]] = [deque() for _ in clients]
    for number, size in wishes:
        queues[number].append(size)
    asking = set(range(8))
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
                assert budget.used <= budget.total
        if not got:  # all wait: the favoured ones end what they have in hand
            holders = [client for client in clients if client.share.held]
            assert holders, "nobody holds anything, and nobody gets anything"
            for client in holders:
                client.share.add(-client.share.held)
    for client in clients:
        client.share.close()
    assert budget.used == 0


def test_what_is_kept_beyond_requests_keeps_nobody_in_favour() -> None:
    """A fetch session of a thousand partitions lasts as long as its connection."""
    budget = MemoryBudget(16 * MB)
    hogs = [Client(budget) for _ in range(3)]
    consumer, late = Client(budget), Client(budget)
    assert consumer.share.take(ALLOWANCE // 2)
    assert all(hog.share.take(4 * MB) for hog in hogs[:2])
    assert hogs[2].share.take(3 * MB)
    assert consumer.share.take(MB), "the favoured one" if budget.favoured is consumer.share else "there was room"
    budget.favoured = consumer.share
    consumer.share.keep(3 * ALLOWANCE)
    assert not late.share.take(2 * MB)
    consumer.share.add(-MB - ALLOWANCE // 2)
    assert consumer.share.held == 3 * ALLOWANCE
    assert budget.favoured is None
    assert late.woken == 1
    assert late.share.take(2 * MB), "its turn to be favoured"
    consumer.share.close()
    assert (budget.used, consumer.share.kept) == (13 * MB, 3 * ALLOWANCE)


def test_who_needs_nothing_any_more_lets_the_next_ask() -> None:
    budget = MemoryBudget(16 * MB)
    hogs = [Client(budget) for _ in range(3)]
    for hog in hogs:
        assert hog.share.take(4 * MB)
    waiting = [Client(budget) for _ in range(40)]
    for client in waiting:
        assert not client.share.take(MB)
    hogs[0].share.close()
    assert not all(client.woken for client in waiting), "few at a time"
    asked = 0
    while asked < sum(client.woken for client in waiting):
        waiting[asked].share.asked()
        asked += 1
    assert all(client.woken == 1 for client in waiting)


def test_who_always_has_something_to_do_does_not_stay_in_favour() -> None:
    budget = MemoryBudget(16 * MB)
    hogs = [Client(budget) for _ in range(3)]
    for hog, size in zip(hogs, (4, 4, 3), strict=True):
        assert hog.share.take(size * MB)
    busy, late = Client(budget), Client(budget)
    assert busy.share.take(2 * MB), "in favour"
    assert not late.share.take(4 * MB)
    hogs[2].share.close()
    assert late.woken
    assert late.share.take(4 * MB), "its turn"
    assert not busy.share.take(MB)
    assert budget.used <= budget.total


def test_one_may_go_beyond_its_part_while_there_is_room_for_all() -> None:
    budget = MemoryBudget(16 * MB)
    client, other = Client(budget), Client(budget)
    assert client.share.take(4 * MB)
    assert not client.share.take(MB)
    assert client.share.take(4 * MB, over=True)
    assert not client.share.take(4 * MB, over=True), "not into what is kept back"
    assert other.share.take(4 * MB)
    with pytest.raises(TooMuchMemoryError):
        client.share.take(4 * MB + 1, over=True)


@pytest.mark.parametrize("clients", [10, 64, 100, 500, 1024])
def test_the_allowances_of_all_fit_into_the_budget(clients: int) -> None:
    """Beside one connection that takes its quarter, and others that take what there is."""
    budget = MemoryBudget(16 * MB)
    shares = [budget.share(lambda: None) for _ in range(clients)]
    assert all(share.take(budget.allowance) for share in shares)
    assert all(share.small for share in shares)
    assert budget.allowance == ALLOWANCE if clients <= 64 else budget.allowance < ALLOWANCE
    for share in shares[:10]:
        while share.take(64 * 1024):
            pass
    assert budget.used <= budget.total
    for share in shares:
        share.close()
    assert (budget.used, budget.allowance) == (0, ALLOWANCE)


def test_beginnings_of_requests_that_wait_do_not_make_them_wait() -> None:
    budget = MemoryBudget(16 * MB)
    shares = [budget.share(lambda: None) for _ in range(1000)]
    free = budget.limit
    for share in shares:
        share.begin_request(4096)
    assert budget.requests == budget.used == 1000 * 4096
    assert budget.limit - budget.used >= free - 4096
    shares[0].go_on()
    shares[0].go_on()
    assert budget.unfinished == 999 * 4096
    for share in shares:
        share.close()
    assert (budget.used, budget.requests, budget.unfinished) == (0, 0, 0)
    assert budget.limit == 12 * MB


def test_little_is_read_at_once_while_memory_is_short() -> None:
    budget = MemoryBudget(16 * MB)
    client, hog, late = Client(budget), Client(budget), Client(budget)
    assert client.share.unasked(MB) == MB
    hog.share.keep(budget.limit)
    assert client.share.unasked(MB) == ALLOWANCE
    client.share.add(ALLOWANCE - 10)
    assert client.share.unasked(MB) == LEAST_ALLOWANCE
    hog.share.keep(-MB)
    assert client.share.unasked(MB) == MB
    hog.share.keep(MB - 10)
    assert late.share.take(2 * MB), "in favour"
    assert not hog.share.take(2 * MB)
    assert client.share.unasked(100) == 100
