"""Requests of a server's connection that are worked out in steps, in its turns (see `fair_queue`).

Each is done a slice at a time. It pauses between two slices, while it waits for what it yielded, and while there is no
memory for what it needs next.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kclient.net.answers import FRAME_READ, Steps, Work
from kclient.net.discarding import in_slices, remains_of
from kclient.net.fair_queue import Flow
from kclient.net.garbage import LARGE, HoldOff
from kclient.net.memory_budget import Share
from kclient.net.reply_order import ReplyOrder, ReplySlot

__all__ = ["RequestSteps"]


class _Course:
    """The steps of one request on their way."""

    __slots__ = ("failed", "hold_off", "lasting", "owed", "slot", "then", "work")

    def __init__(
        self,
        slot: ReplySlot,
        steps: Steps,
        then: Callable[[ReplySlot, Any], object],
        failed: Callable[[ReplySlot, BaseException], object],
    ) -> None:
        self.slot = slot
        self.work = steps.work
        self.lasting = steps.lasting
        self.then = then
        self.failed = failed
        self.owed = 0
        """Bytes that it needs before it goes on."""
        self.hold_off = HoldOff()


class RequestSteps:
    """What one connection has in work.

    Args:
        flow: Its turns.
        order: The places of its requests.
    """

    __slots__ = ("_clock", "_courses", "_flow", "_hungry", "_order", "_running", "_share")

    def __init__(self, flow: Flow, order: ReplyOrder) -> None:
        self._flow = flow
        self._clock = flow.clock
        self._order = order
        self._share: Share = order.share
        self._courses: set[_Course] = set()
        self._running: _Course | None = None
        self._hungry: list[_Course] = []  # those that wait for memory

    # The owner's functions belong to the requests: what it has made must not keep it when it has ended.

    def add(
        self,
        slot: ReplySlot,
        steps: Steps,
        then: Callable[[ReplySlot, Any], object],
        failed: Callable[[ReplySlot, BaseException], object],
    ) -> None:
        """Work a request out in the next turns.

        Args:
            slot: Its place.
            steps: What is to be done.
            then: Called at the end with the place and what the steps return.
            failed: Called with the place and what they raise.
        """
        course = _Course(slot, steps, then, failed)
        self._courses.add(course)
        self._flow.add(partial(self._go_on, course))

    def begin(
        self,
        slot: ReplySlot,
        steps: Steps,
        then: Callable[[ReplySlot, Any], object],
        failed: Callable[[ReplySlot, BaseException], object],
        until: float,
    ) -> None:
        """As `add`, and begin now, up to a time."""
        course = _Course(slot, steps, then, failed)
        self._courses.add(course)
        if self._go_on(course, until):
            self._flow.add(partial(self._go_on, course))

    def crowded(self, held: int, most: int) -> bool:
        """Whether one waits for memory that a connection cannot have that holds so much, and `most` at most."""
        return any(held + course.owed > most for course in self._hungry)

    def needs_own(self, slot: ReplySlot) -> bool:
        """Whether a request waits for memory that comes free only when it has ended."""
        share = self._share
        return any(
            course.slot is slot and course.owed and share.held + course.owed > share.most for course in self._courses
        )

    def ask_again(self) -> None:
        """There may be memory for those that wait for some."""
        hungry, self._hungry = self._hungry, []
        for course in hungry:
            self._flow.add(partial(self._go_on, course))

    def desert(self) -> None:
        """The client has gone: those that are worked out for nobody else end without a reply."""
        for course in list(self._courses):
            if not course.lasting and course is not self._running and course in self._courses:
                self._give_up(course)
                course.then(course.slot, None)

    def end(self) -> None:
        """The connection has ended: what lasts goes on, the rest is given up."""
        hungry, self._hungry = self._hungry, []
        for course in list(self._courses):
            if not course.lasting:
                self._give_up(course)
        for course in hungry:
            if course.lasting:
                self._flow.add(partial(self._go_on, course))  # a closed share gives what is asked for

    def give_up(self) -> None:
        """Nobody waits for any of them."""
        for course in list(self._courses):
            self._give_up(course)

    def _go_on(self, course: _Course, until: float) -> bool:
        """Do steps of a request up to a time; whether there is more to do in the next turn."""
        if course.slot.held > LARGE:
            course.hold_off.begin()
        more = self._step(course, until)
        if not more:
            course.hold_off.end()
        return more

    def _step(self, course: _Course, until: float) -> bool:
        work = course.work
        while course in self._courses:
            try:
                if course.owed:
                    if not self._may_take(course):
                        self._hungry.append(course)
                        self._order.hurry()
                        return False
                    course.slot.held += course.owed
                    course.owed = 0
                self._running = course
                course.slot.since = self._clock()
                step = next(work)
            except StopIteration as end:
                self._courses.discard(course)
                course.then(course.slot, end.value)
                return False
            except Exception as error:  # noqa: BLE001  (it is logged)
                self._courses.discard(course)
                self._discard(work, error)
                course.failed(course.slot, error)
                return False
            finally:
                self._running = None
                if course.slot.since is not None:
                    course.slot.worked += self._clock() - course.slot.since
                    course.slot.since = None
            if isinstance(step, int):
                if step < 0:
                    course.slot.held += step
                    self._share.add(step)
                else:
                    course.owed = step
            elif step is FRAME_READ:
                self._order.release_frame(course.slot)
            elif step is not None and not step.done:
                step.on_done(lambda _: self._flow.add(partial(self._go_on, course)))
                return False
            if self._clock() >= until:
                return course in self._courses
        self._close(work)  # it closed its own connection
        return False

    def _close(self, work: Work) -> None:
        """End steps that are not done."""
        self._discard(work)
        work.close()

    def _discard(self, work: Work, error: Exception | None = None) -> None:
        """Give up in later turns what unfinished steps hold many of."""
        remains = remains_of(work, error)
        if remains is not None:
            self._flow.add(in_slices(remains, self._clock))

    def _may_take(self, course: _Course) -> bool:
        slot = course.slot
        if slot.taken > self._share.most:  # one thing larger than its part: what goes with that cannot wait for it
            self._share.add(course.owed)
            return True
        alone = slot.held + course.owed > self._share.most  # whatever else comes free
        return self._share.take(course.owed, last=alone, over=self._order.is_first(slot))

    def _give_up(self, course: _Course) -> None:
        """Nobody waits for these steps any more."""
        self._courses.discard(course)
        if course in self._hungry:
            self._hungry.remove(course)
        course.hold_off.end()
        if course is not self._running:  # else it sees it itself
            self._close(course.work)
