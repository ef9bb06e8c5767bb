"""A command that does its work again and again: when, and what ends it."""

from __future__ import annotations

import pytest

from kclient.cli.errors import Terminated
from kclient.cli.repeated import repeated
from kclient.errors import ConfigError, KafkaTimeoutError, TopicAuthorizationError


class Hours:
    """A clock that only waiting and working move, and a service that is told to end at some time."""

    def __init__(self, end: float, kind: type[BaseException]) -> None:
        self.now = 1000.0
        self.waited: list[float] = []
        self._end = 1000.0 + end
        self._kind = kind

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds
        if self.now >= self._end:
            raise self._kind


def test_turns_begin_so_many_seconds_apart_however_long_they_take() -> None:
    hours, begun = Hours(100, Terminated), list[float]()

    def turn() -> None:
        begun.append(hours.now - 1000)
        hours.now += [3, 0, 25, 1][len(begun) % 4]

    assert repeated(10, turn, print, hours.clock, hours.wait) == 0, "a service that is stopped has not failed"
    assert begun[:6] == [0, 10, 35, 45, 55, 65]
    assert hours.waited[:4] == [10, 0, 9, 7]


def test_what_another_run_may_cure_is_told_and_tried_again() -> None:
    hours, said, turns = Hours(25, KeyboardInterrupt), list[str](), list[int]()

    def turn() -> None:
        turns.append(len(turns))
        hours.now += 4
        if len(turns) == 2:
            raise KafkaTimeoutError("no answer\nfrom a:1")

    with pytest.raises(KeyboardInterrupt):
        repeated(10, turn, said.append, hours.clock, hours.wait)
    assert (len(turns), said) == (3, ["no answer from a:1; the next run, in 6 s, goes on"])


@pytest.mark.parametrize("error", [TopicAuthorizationError("no"), ConfigError("no"), RuntimeError("no")])
def test_what_no_run_can_cure_ends_it(error: Exception) -> None:
    hours = Hours(25, Terminated)

    def turn() -> None:
        raise error

    with pytest.raises(type(error)):
        repeated(10, turn, print, hours.clock, hours.wait)
    assert hours.waited == []
