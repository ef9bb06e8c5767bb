"""Who stalls and who is only slow, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kclient.net.memory_budget import MemoryBudget, Share
from kclient.net.stalls import StallWatch

TIMEOUT = 10.0
LOOK = 0.5


def a_share() -> Share:
    return MemoryBudget().share(lambda: None)


@dataclass(eq=False)
class Uploader:
    """A client in the middle of a request."""

    size: int
    rate: Callable[[float], float] = lambda _: 0.0
    """Bytes a second at a time."""
    begun: float = 0.0
    read: Callable[[float], bool] = lambda _: True
    """Whether it has got memory at a time."""
    buffer: int = 64 * 1024
    share: Share = field(default_factory=a_share)
    moved: int = 1000
    unread: float = 0.0

    @property
    def stuck(self) -> int:
        return self.size if self.moved < self.size else 0

    @property
    def announced(self) -> tuple[float, int] | None:
        return self.begun, 1000

    @property
    def waits_to_be_read(self) -> bool:
        return self.unread >= min(self.size - self.moved, 16 * 1024)

    def pass_time(self, now: float) -> None:
        self.unread = min(self.unread + self.rate(now) * LOOK, self.buffer, self.size - self.moved)
        if self.read(now):
            self.moved += int(self.unread)
            self.unread = 0.0


def stalls_at(client: Uploader, first: float = 0.0, until: float = 200.0) -> float | None:
    """When it is found to stall, looked at from `first` on."""
    watch = StallWatch(TIMEOUT)
    now = 0.0
    while now < until:
        client.pass_time(now)
        if now >= first and watch.stalls(client, now):
            return now
        now += LOOK
    return None


@pytest.mark.parametrize("size", [2_000, 60_000, 250_000, 900_000, 100 << 20])
def test_who_announces_and_is_silent_stalls_whatever_the_size(size: int) -> None:
    assert stalls_at(Uploader(size)) == TIMEOUT


@pytest.mark.parametrize("size", [60_000, 250_000, 900_000, 100 << 20])
def test_silence_in_the_line_counts_too(size: int) -> None:
    assert stalls_at(Uploader(size, read=lambda _: False)) == TIMEOUT
    assert stalls_at(Uploader(size, read=lambda now: now > 9)) == TIMEOUT, "getting memory is no sign of life"


@pytest.mark.parametrize("size", [60_000, 250_000, 900_000, 3 << 20])
def test_who_has_sent_and_is_not_read_does_not_stall(size: int) -> None:
    client = Uploader(size, rate=lambda _: 1e6, read=lambda now: now > 100)
    assert stalls_at(client, until=100) is None
    assert client.moved == 1000
    assert stalls_at(client) is None
    assert client.moved == size


@pytest.mark.parametrize("size", [60_000, 250_000, 900_000, 3 << 20])
@pytest.mark.parametrize("admitted", [0, 3, 30])
def test_a_slow_uploader_does_not_stall(size: int, admitted: int) -> None:
    client = Uploader(size, rate=lambda _: 27_000, read=lambda now: now >= admitted)
    assert stalls_at(client) is None
    assert client.moved == size


def test_a_small_request_may_come_more_slowly() -> None:
    client = Uploader(60_000, rate=lambda _: 2_000)
    assert stalls_at(client) is None
    assert client.moved == 60_000
    assert stalls_at(Uploader(900_000, rate=lambda _: 2_000)) is not None


def test_a_pause_of_some_seconds_does_no_harm() -> None:
    client = Uploader(3 << 20, rate=lambda now: 60_000 if now % 16 < 8 else 0)
    assert stalls_at(client) is None
    assert client.moved == 3 << 20


def test_who_has_been_silent_before_anybody_waited_has_little_time_left() -> None:
    assert stalls_at(Uploader(250_000), first=5) == TIMEOUT
    assert stalls_at(Uploader(250_000), first=60) == 62
    # one that was fast until now has all of it
    fast = Uploader(30 << 20, rate=lambda now: 200_000 if now < 60 else 0)
    assert stalls_at(fast, first=60) == 60 + TIMEOUT


def test_a_full_buffer_buys_little_time() -> None:
    """Else thousands that send half a request take their turns one after the other, ten seconds each."""
    client = Uploader(900_000, rate=lambda now: 1e6 if now < 1 else 0, read=lambda now: now >= 50)
    at = stalls_at(client)
    assert at is not None
    assert 52 <= at <= 54.5


def test_a_loop_that_was_held_up_is_not_the_clients_fault() -> None:
    watch = StallWatch(TIMEOUT)
    client = Uploader(900_000)
    assert not watch.stalls(client, 1.0)
    assert not watch.stalls(client, 60.0)


def test_every_request_has_its_time() -> None:
    watch = StallWatch(TIMEOUT)
    client = Uploader(900_000)
    assert not watch.stalls(client, 0.0)
    for now in range(1, 10):
        assert not watch.stalls(client, now)
    client.moved = client.size
    assert not watch.stalls(client, 9.5)
    client.size, client.begun = 2 * client.size, 9.5
    assert not watch.stalls(client, 12.0)
