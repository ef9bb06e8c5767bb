"""Who stalls and who is only slow, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.net.memory_budget import MemoryBudget, Share
from kclient.net.stalls import StallWatch

TIMEOUT = 10.0
WHOLE = 60.0
"""Seconds in which all that is kept has to move, where much is kept."""
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


@dataclass(eq=False)
class Reader:
    """A client that reads a reply; what it has read is not kept any more."""

    unsent: int
    rate: float
    share: Share = field(default_factory=a_share)
    moved: int = 1000
    announced: tuple[float, int] | None = None
    waits_to_be_read: bool = False

    @property
    def stuck(self) -> int:
        return self.unsent if not self.small else 0

    @property
    def small(self) -> bool:
        return self.unsent <= 64 * 1024

    def pass_time(self, _now: float) -> None:
        count = min(int(self.rate * LOOK), self.unsent)
        self.unsent -= count
        self.moved += count


def stalls_at(client: Uploader | Reader, first: float = 0.0, until: float = 200.0) -> float | None:
    """When it is found to stall, looked at from `first` on."""
    found = stalls(client, first, until)
    return None if found is None else found[0]


def stalls(client: Uploader | Reader, first: float = 0.0, until: float = 200.0) -> tuple[float, float] | None:
    """When, and for how long it has stalled then."""
    watch = StallWatch(TIMEOUT)
    now = 0.0
    while now < until:
        client.pass_time(now)
        if now >= first and (seconds := watch.stalls_for(client, now)) is not None:
            return now, seconds
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
    rate = max(27_000, size / WHOLE * 1.03)
    client = Uploader(size, rate=lambda _: rate, read=lambda now: now >= admitted)
    assert stalls_at(client) is None
    assert client.moved == size


def test_a_small_request_may_come_more_slowly() -> None:
    client = Uploader(60_000, rate=lambda _: 2_000)
    assert stalls_at(client) is None
    assert client.moved == 60_000
    assert stalls_at(Uploader(900_000, rate=lambda _: 2_000)) is not None


@pytest.mark.parametrize("size", [2 << 20, 10 << 20, 100 << 20])
def test_who_keeps_much_may_not_trickle(size: int) -> None:
    """Else four connections keep all other large requests waiting for an hour."""
    at = stalls_at(Uploader(size, rate=lambda _: 28_000))
    assert at is not None
    assert at < WHOLE
    assert stalls_at(Uploader(100 << 20, rate=lambda _: 28_000)) == TIMEOUT + LOOK
    client = Uploader(size, rate=lambda _: size / WHOLE * 1.01, buffer=1 << 20)
    assert stalls_at(client) is None
    assert client.moved == size


@given(
    size=st.integers(1, 200 << 20),
    pace=st.lists(st.floats(0, 3), min_size=1, max_size=20),
    buffer=st.integers(1, 400_000_000),
)
def test_nobody_keeps_anything_for_much_longer_than_a_minute(size: int, pace: list[float], buffer: int) -> None:
    """However it spreads its bytes over the time."""
    rates = [part * size / WHOLE for part in pace]
    client = Uploader(size + 1000, rate=lambda now: rates[int(now) % len(rates)], buffer=buffer)
    at = stalls_at(client)
    if at is None:
        assert client.moved == client.size
        client = Uploader(client.size, rate=client.rate, buffer=buffer)
        at = next(now * LOOK for now in range(1000) if client.pass_time(now * LOOK) or not client.stuck)
    assert at <= WHOLE + TIMEOUT + 2 * LOOK


@pytest.mark.parametrize("size", [10 << 20, 50 << 20, 128 << 20])
def test_a_slow_reader_of_large_replies(size: int) -> None:
    at = stalls_at(Reader(size, 28_000))
    assert at is not None
    assert at < 1.5 * TIMEOUT
    reader = Reader(size, size / WHOLE)
    assert stalls_at(reader) is None
    assert reader.small


def test_a_slow_reader_of_a_small_reply() -> None:
    reader = Reader(1_000_000, 27_000)
    assert stalls_at(reader) is None
    assert reader.small


def test_a_pause_of_some_seconds_does_no_harm() -> None:
    client = Uploader(3 << 20, rate=lambda now: 120_000 if now % 16 < 8 else 0)
    assert stalls_at(client) is None
    assert client.moved == 3 << 20


def test_who_has_been_silent_before_anybody_waited_has_little_time_left() -> None:
    assert stalls_at(Uploader(250_000), first=5) == TIMEOUT
    assert stalls_at(Uploader(250_000), first=60) == 62
    # one that was fast until now has all of it
    fast = Uploader(30 << 20, rate=lambda now: 600_000 if now < 50 else 0, buffer=1 << 20)
    assert stalls_at(fast, first=50) == 50 + TIMEOUT


@pytest.mark.parametrize("size", [150_000, 250_000, 900_000, 100 << 20])
@pytest.mark.parametrize("buffer", [20_000, 64 * 1024])
def test_a_full_buffer_buys_little_time(size: int, buffer: int) -> None:
    """Else thousands that send half a request take their turns one after the other, ten seconds each.

    Also where what is in the buffer would be enough if it had been sent since.
    """
    client = Uploader(size, rate=lambda now: 1e6 if now < 1 else 0, read=lambda now: now >= 50, buffer=buffer)
    at = stalls_at(client)
    assert at is not None
    assert 50 < at <= 54.5


@pytest.mark.parametrize("size", [250_000, 900_000, 3 << 20, 30 << 20])
def test_who_was_in_the_line_has_all_of_its_patience_when_it_has_moved_enough(size: int) -> None:
    """A pause of some seconds, as for a garbage collection, does no more harm than to those that did not wait."""

    def with_pause(seconds: float) -> Uploader:
        return Uploader(
            size,
            rate=lambda now: 0 if 20 < now <= 20 + seconds else size / 20,
            read=lambda now: now >= 12.5,
            buffer=max(size // 20, 64 * 1024),
        )

    client = with_pause(8)
    assert stalls_at(client) is None
    assert client.moved == size
    assert stalls(with_pause(60)) == (20 + TIMEOUT, TIMEOUT)


def test_it_tells_for_how_long() -> None:
    assert stalls(Uploader(900_000)) == (TIMEOUT, TIMEOUT)
    assert stalls(Uploader(250_000), first=60) == (62, 62)
    for size in (900_000, 100 << 20):
        client = Uploader(size, rate=lambda now: 1e6 if now < 1 else 0, read=lambda now: now >= 50)
        at, seconds = stalls(client) or (0, 0)
        assert at > 50
        assert 2 <= seconds <= 3, "since it is read again"
    at, seconds = stalls(Uploader(900_000, rate=lambda now: 1e5 if now < 5 else 1e4)) or (0, 0)
    assert at - seconds == pytest.approx(5, abs=1), "since it moves too little"


def test_a_loop_that_was_held_up_is_not_the_clients_fault() -> None:
    watch = StallWatch(TIMEOUT)
    client = Uploader(900_000)
    assert not watch.stalls_for(client, 1.0)
    assert not watch.stalls_for(client, 60.0)


def test_every_request_has_its_time() -> None:
    watch = StallWatch(TIMEOUT)
    client = Uploader(900_000)
    assert not watch.stalls_for(client, 0.0)
    for now in range(1, 10):
        assert not watch.stalls_for(client, now)
    client.moved = client.size
    assert not watch.stalls_for(client, 9.5)
    client.size, client.begun = 2 * client.size, 9.5
    assert not watch.stalls_for(client, 12.0)
