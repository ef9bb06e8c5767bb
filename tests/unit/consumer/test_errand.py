"""Errands: what a member has to do once, with its next requests."""

from __future__ import annotations

from kclient.consumer.group.errand import Errand


def test_an_errand_is_given_out_once() -> None:
    errand: Errand[str] = Errand()
    assert errand.give_out() is None
    errand.want("a")
    assert (errand.pending, errand.give_out(), errand.give_out()) == (True, "a", None)
    assert errand.pending  # it is on its way
    errand.end()
    assert not errand.pending


def test_a_newer_errand_takes_the_place_of_one_that_is_on_its_way() -> None:
    first, second = object(), object()
    errand: Errand[object] = Errand()
    errand.want(first)
    errand.give_out()
    errand.want(second)
    assert not errand.is_for(first)  # its answer comes too late
    assert errand.is_for(second)
    assert errand.give_out() is second
