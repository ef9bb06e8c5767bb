"""Whose turn it is on the event loop: flows share it in slices of two milliseconds, those that use little first.

A flow is what belongs together, on a server all that one connection asks for. Whoever works in a callback of the loop
enters its flow before and leaves it afterwards; what takes longer than a slice goes on as a job of the flow, in the
loop's next turns. So between two slices the loop looks at every socket, and the more a flow has to do, the more often
the others come in between (deficit round robin; that sparse flows come first is as in FQ-CoDel, RFC 8290). A client
may have a thousand connections that each ask for little: those of a host that asks for little come before them.

The queue reads a clock and knows no loop: it is told how to be called again in the loop's next turn.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from kclient.concurrency import Completion
from kclient.net.thread_switches import switch_interval

__all__ = ["SLICE", "FairQueue", "Flow", "Job", "Pace"]

logger: logging.Logger = logging.getLogger("kclient.net.server")

SLICE: Final = 0.002
"""Seconds that a flow works before the others have their turn."""
_TURN: Final = 0.0025
"""Seconds that all flows together work in one turn of the loop, once as callbacks and once as jobs."""
_ROUND: Final = 0.02
"""Seconds in which each of many flows has its turn; their slices are the shorter."""
_LEAST: Final = 0.0002
"""Seconds that a slice has nevertheless."""
_SHORT: Final = 0.0002
"""Seconds that a task takes that was woken to see whether there is something for it."""
_LINGERS: Final = 3
"""The loop stays busy for so many turns after something was granted: it is worked in one of them."""
_CHARGED: Final = 0.0005
"""Seconds that a flow is charged at most for one time that it works. It may have taken longer because the system let
other processes run, and one with much to do comes last all the same."""
_RATE: Final = 0.1
"""A flow that takes less than this share of the time comes before those that take more."""
_RATE_OF_HOST: Final = 0.25
"""The flows of a host that together take less than this share come before those of a host that takes more."""
_BUSY: Final = 2
"""The last tier."""

Job: TypeAlias = Callable[[float], bool]
"""`job(until)` works until that time on the queue's clock at most, and says whether there is more. Never raises."""


class _Allowance:
    """What may be used of the loop before others come first: it grows with time."""

    __slots__ = ("__weakref__", "_rate", "_stamp", "left")

    def __init__(self, rate: float, now: float) -> None:
        self.left: float = SLICE
        self._rate = rate
        self._stamp = now

    def earn(self, now: float) -> None:
        self.left = min(self.left + (now - self._stamp) * self._rate, SLICE)
        self._stamp = now

    def charge(self, seconds: float, least: float = -SLICE / 2) -> None:
        self.left = max(self.left - seconds, least)


class Flow:
    """What one connection does; made by `FairQueue.flow`."""

    __slots__ = ("_host", "_jobs", "_own", "_queue", "_stamp", "queued")

    def __init__(self, queue: FairQueue, host: _Allowance) -> None:
        self.queued: bool = False
        """Whether it waits for its turn."""
        self._queue = queue
        self._jobs: deque[Job] = deque()
        self._stamp = queue.clock()
        self._own = _Allowance(_RATE, self._stamp)
        self._host = host

    def enter(self) -> bool:
        """In a callback of the loop: whether the flow may work now; if so, `leave` follows in the same callback.

        If not, add what is to be done as a job.
        """
        queue = self._queue
        if self.queued or queue.spent > _TURN:
            return False
        self._stamp = queue.clock()
        return not queue.waiting or self._tier() == 0

    def leave(self) -> None:
        """The flow has worked since `enter`."""
        queue = self._queue
        now = queue.clock()
        used = now - self._stamp
        self._stamp = now
        queue.spent += used
        if queue.waiting:  # else nobody cares
            self._own.charge(min(used, _CHARGED))
            self._host.charge(min(used, SLICE))

    @property
    def clock(self) -> Callable[[], float]:
        """The clock of its turns."""
        return self._queue.clock

    @property
    def until(self) -> float:
        """Until when the flow may work, once it has entered."""
        return self._stamp + SLICE

    def add(self, job: Job) -> None:
        """Have a job done in the flow's turns, a slice at a time, until it says that there is no more."""
        self._jobs.append(job)
        if not self.queued:
            self._stamp = self._queue.clock()
            self._queue.push(self, self._tier())

    def work(self, until: float) -> bool:
        """Do jobs in turn until a time; whether there is more. Called by the queue."""
        self._stamp = self._queue.clock()
        jobs, clock = self._jobs, self._queue.clock
        while jobs:
            job = jobs.popleft()
            try:
                more = job(until)
            except Exception:
                logger.exception("a job failed")  # its owner should have seen to it
                more = False
            if more:
                jobs.append(job)
            if clock() >= until:
                break
        return bool(jobs)

    def charge(self, seconds: float) -> None:
        """The flow is about to work for so long, about, where the queue does not see it."""
        self._own.charge(seconds, -SLICE)
        self._host.charge(seconds)
        self._queue.spent += seconds
        self._queue.granted += seconds

    def _tier(self) -> int:
        """How soon its turn comes: 0 for a quiet flow of a quiet host, 1 for one of a busy host, 2 for a busy flow."""
        self._own.earn(self._stamp)
        self._host.earn(self._stamp)
        if self._own.left <= 0:
            return _BUSY
        return 0 if self._host.left > 0 else 1


class FairQueue:
    """The flows of one event loop that wait for their turn.

    Args:
        soon: Calls a function in the loop's next turn.
        clock: Seconds, monotonic and fine; `time.perf_counter` by default.
    """

    def __init__(
        self, soon: Callable[[Callable[[], object]], object], clock: Callable[[], float] | None = None
    ) -> None:
        self.clock: Callable[[], float] = clock or time.perf_counter
        self.spent: float = 0.0
        """Seconds that flows have worked since the queue ran last."""
        self.granted: float = 0.0
        """Of these, what they will have worked soon."""
        self._soon = soon
        self.waiting: int = 0
        """How many flows wait for their turn."""
        self._tiers: tuple[deque[Flow], ...] = (deque(), deque(), deque())
        self._hosts: weakref.WeakValueDictionary[str, _Allowance] = weakref.WeakValueDictionary()
        self._scheduled = False
        self._lingers = 0
        """Turns of the loop for which it is busy yet, because something was granted."""
        self._quick: weakref.finalize[[], FairQueue] | None = None
        """Ends the quick change of threads; by itself if the loop ended while there was something to do."""

    def flow(self, host: str | None = None) -> Flow:
        """A flow of its own.

        Args:
            host: Where it comes from: a client may have many connections.
        """
        allowance = None if host is None else self._hosts.get(host)
        if allowance is None:
            allowance = _Allowance(_RATE_OF_HOST, self.clock())
            if host is not None:
                self._hosts[host] = allowance
        return Flow(self, allowance)

    def push(self, flow: Flow, tier: int) -> None:
        """A flow waits for its turn. Called by the flow."""
        flow.queued = True
        self.waiting += 1
        self._tiers[tier].append(flow)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        self.granted = 0.0
        now = self.clock()
        end = now + _TURN
        for tier in self._tiers:
            if tier:
                part = min(SLICE, max(_ROUND / len(tier), _LEAST))
                # one at least, however many come before
                now = self._serve(tier.popleft(), max(min(end, now + part), now + part / 2))
                while tier and end - now > part / 2:  # who gets less than half a slice waits for the next turn
                    now = self._serve(tier.popleft(), min(end, now + part))
        self.spent = 0.0
        self._lingers = _LINGERS if self.granted > 0 else max(self._lingers - 1, 0)
        busy = self.waiting > 0 or self._lingers > 0
        if busy:
            self._schedule()
        if busy and self._quick is None:
            switch_interval.shorten()
            self._quick = weakref.finalize(self, switch_interval.restore)
        elif self._quick is not None and not busy:
            self._quick()
            self._quick = None

    def _serve(self, flow: Flow, until: float) -> float:
        """Let a flow work; when it has, with what it was granted."""
        more = flow.work(until)
        flow.leave()
        if more:
            self._tiers[_BUSY].append(flow)
        else:
            flow.queued = False
            self.waiting -= 1
        return flow._stamp + self.granted


class Pace:
    """Lets a coroutine work in slices.

    Args:
        flow: Whose turns it takes.
    """

    __slots__ = ("_clock", "_flow", "_until")

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._clock = flow.clock
        self._until = self._clock() + SLICE

    @property
    def over(self) -> bool:
        """Whether it is time to `pause`: cheap enough to be asked often."""
        return self._clock() >= self._until

    async def pause(self) -> None:
        """Wait for the flow's turn, if a slice's time has passed since the last one began; else return at once."""
        if self._clock() >= self._until:
            await self._turn(SLICE)

    async def turn(self) -> None:
        """Go on after a wait: at once unless the loop is busy, else in the flow's turn.

        Where one event wakes thousands of tasks this lets others come in between.
        """
        if self._flow.enter():
            self._flow.charge(_SHORT)
            self._until = self._clock() + SLICE
        else:
            await self._turn(_SHORT)

    async def _turn(self, seconds: float) -> None:
        granted: Completion[None] = Completion()

        def grant(_until: float) -> bool:
            self._flow.charge(seconds)  # what is done with it comes after this job
            granted.set_result(None)
            return False

        self._flow.add(grant)
        await granted.wait()
        self._until = self._clock() + SLICE
