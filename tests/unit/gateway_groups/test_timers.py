"""Deadlines: they fire in order, the last one set holds, and pushing back leaves no trace."""

from __future__ import annotations

import gc
from weakref import ref

from hypothesis import given
from hypothesis import strategies as st

from kclient.gateway.groups.timers import Timers


def test_fires_in_order_of_time() -> None:
    timers: Timers[str] = Timers()
    timers.schedule("b", 2.0)
    timers.schedule("a", 1.0)
    assert timers.next_deadline() == 1.0
    assert timers.pop_due(0.5) is None
    assert [timers.pop_due(2.0), timers.pop_due(2.0), timers.pop_due(2.0)] == ["a", "b", None]


def test_pushing_back_and_cancelling() -> None:
    timers: Timers[str] = Timers()
    timers.schedule("a", 1.0)
    timers.schedule("a", 5.0)
    assert timers.next_deadline() == 5.0
    timers.schedule("a", 3.0)
    assert timers.next_deadline() == 3.0
    timers.cancel("a")
    assert timers.next_deadline() is None
    assert timers.pop_due(9.0) is None
    timers.schedule("a", 4.0)
    assert timers.pop_due(4.0) == "a"


def test_cancelled_keys_are_not_kept() -> None:
    """Ids of groups are as long as clients like, and their deadlines may be half an hour away."""
    timers: Timers[str] = Timers()
    timers.schedule("stays", 1800.0)
    for number in range(10_000):
        timers.schedule(f"g{number}", 1000.0 + number)
        timers.cancel(f"g{number}")
        timers.schedule("stays", 1800.0 - number / 10_000)
    assert len(timers._heap) < 200
    assert timers.next_deadline() == 1800.0 - 9999 / 10_000
    assert timers.pop_due(1800.0) == "stays"
    assert timers.pop_due(20_000.0) is None


class Key:
    """A key of which it is seen whether it is there."""


def test_no_cancelled_key_is_kept() -> None:
    """However few there are: each of very many groups has such deadlines."""
    timers: Timers[Key] = Timers()
    stays, cancelled, sooner = Key(), Key(), Key()
    timers.schedule(stays, 1800.0)
    timers.schedule(cancelled, 1900.0)
    timers.schedule(sooner, 2000.0)
    timers.schedule(sooner, 5.0)
    assert timers.pop_due(5.0) is sooner
    timers.cancel(cancelled)
    timers.cancel(cancelled)
    kept = [ref(cancelled), ref(sooner)]
    del cancelled, sooner
    gc.collect()
    assert [each() for each in kept] == [None, None]
    assert timers.pop_due(3000.0) is stays
    assert timers.pop_due(3000.0) is None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("schedule"), st.sampled_from("abc"), st.integers(0, 9)),
        st.tuples(st.just("cancel"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.just("pop"), st.just(""), st.integers(0, 9)),
    ),
    max_size=60,
)


@given(STEPS)
def test_as_a_plain_dictionary(steps: list[tuple[str, str, int]]) -> None:
    timers: Timers[str] = Timers()
    model: dict[str, float] = {}
    for step, key, time in steps:
        if step == "schedule":
            timers.schedule(key, float(time))
            model[key] = float(time)
        elif step == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            popped = timers.pop_due(float(time))
            due = {name: at for name, at in model.items() if at <= time}
            assert (popped is None) == (not due)
            if popped is not None:
                assert model.pop(popped) == min(due.values())
        assert timers.next_deadline() == min(model.values(), default=None)
        assert len(timers) == len(model)
