"""The replies of a server's connection leave in the order of its requests; how many may be outstanding.

Each request that begins takes a `ReplySlot`, the last one. Its reply gets there whenever it is ready, and leaves when
all before it have left. What the places hold, and what was written and has not been sent, counts against the
connection's share of memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from kclient.concurrency import loop_clock
from kclient.net.answers import Reply
from kclient.net.channel import Channel
from kclient.net.memory_budget import Share
from kclient.net.server_settings import ServerSettings
from kclient.types import Buffer

__all__ = ["ReplyOrder", "ReplySlot"]

_MOST_TASKS: Final = 64
"""Requests of one connection that tasks work on or wait with. Each is dozens of objects, and the collector looks at all
of them at once while nothing else happens."""


class ReplySlot:
    """A request's place in the order of replies, the last one when it is made, and the memory that is held for it."""

    __slots__ = (
        "_on_next", "_order", "_wanted", "_whole", "done", "frame", "held", "last", "parked", "reply", "since", "taken",
        "worked",
    )  # fmt: skip

    def __init__(self, order: ReplyOrder, frame: int) -> None:
        self.frame: int = frame
        """Bytes of the request, while they are needed."""
        self.held: int = frame
        """Bytes of memory: the request's, what was made of it, then the reply's."""
        self.done: bool = False
        self.last: bool = False
        """Whether the connection ends here: neither it nor what is behind it has a reply."""
        self.parked: bool = False
        """Whether the answer waits for clients, until they do something or their time is over: the handler says so. All
        others wait for the server, and no client can hasten them."""
        self.reply: Reply | None = None
        self._order = order
        self.taken: int = 0
        """Of `held`, what `take` was asked for and is not given back."""
        self._wanted = 0  # what it was asked for in vain
        self._whole = False  # and whether that cannot be had in parts
        self._on_next: Callable[[], object] | None = None
        self.worked: float = 0.0
        """Seconds that steps of the request have taken."""
        self.since: float | None = None
        """When the step began that is at work, on the clock of the connection's turns."""
        order.places.append(self)
        order.request_bytes += frame
        order.undone += 1

    @property
    def is_next(self) -> bool:
        """Whether the reply can leave as soon as it is there: those before it have left."""
        return self._order.is_next(self)

    @property
    def hurried(self) -> bool:
        """Whether the connection goes on only when it holds less: what waits for the client's sake is answered now."""
        return self._order.crowded()

    def mute(self, seconds: float) -> None:
        """The connection begins no more requests for so long, and is not read; what has begun is answered."""
        self._order.mute(seconds)

    def when_next(self, callback: Callable[[], object] | None) -> None:
        """Call `callback` when `is_next` or `hurried` may have become true, or there may be memory to `take`.

        None ends that: whoever is done with the place takes back a callback that leads to it, so that no cycle is left.
        """
        self._on_next = callback

    def told_next(self) -> None:
        """It is the connection's first place now, or there may be memory. Called by those who look after that."""
        if self._wanted:
            self.take(self._wanted, whole=self._whole)  # now: whoever is told asks later than the others
        if self._on_next is not None:
            self._on_next()

    def take(self, size: int, *, whole: bool = False) -> bool:
        """Hold memory for the reply; False if it has to be waited for. It is given back when the reply is there.

        What has to be waited for is held as soon as it can be had; then `taken` tells, and the callback is called.

        Args:
            size: Bytes.
            whole: Whether they are of one thing, that may be larger than the connection's part (see `Share.take`).
        """
        order = self._order
        if not order.share.take(size, over=order.is_first(self), whole=whole):
            self._wanted, self._whole = size, whole
            return False
        self._wanted = 0
        self.held += size
        self.taken += size
        return True

    def give_back(self, but: int = 0) -> None:
        """Give back what was taken, but so many bytes of it."""
        self._wanted = 0
        if self.taken > but:
            self._order.share.add(but - self.taken)
            self.held -= self.taken - but
            self.taken = but


def _never() -> bool:
    """A connection that has ended waits for nothing."""
    return False


def _unheard(_: float) -> None:
    """Nor does anything begin that could be put off."""


class ReplyOrder:
    """The places of one connection's requests.

    Args:
        settings: What may be outstanding.
        share: What the connection holds of the server's memory.
        crowded: Whether something of the connection waits until it holds less itself.
    """

    __slots__ = (
        "_deserted", "_most_bytes", "_most_places", "_most_unsent", "_now", "_reply_bytes", "channel", "closed",
        "crowded", "last_sent", "mute", "muted", "on_empty", "places", "request_bytes", "share", "undone", "unsent",
        "waiting", "working", "written",
    )  # fmt: skip

    def __init__(self, settings: ServerSettings, share: Share, crowded: Callable[[], bool]) -> None:
        self.share: Share = share
        self.crowded: Callable[[], bool] = crowded
        self.channel: Channel | None = None
        """Where replies go; None before the connection is read, and when its stream has ended."""
        self.places: deque[ReplySlot] = deque()
        """Of requests that have begun and whose replies have not been handed to the channel."""
        self.request_bytes: int = 0
        """Of these requests."""
        self.undone: int = 0
        """Of the places, those whose reply is not there."""
        self.working: int = 0
        """And those that a task works on that has not answered."""
        self.waiting: int = 0
        """And those that wait without a task."""
        self.unsent: int = 0
        """Bytes of replies that were handed to the channel and have not been sent."""
        self.written: int = 0
        """Bytes of replies that were ever handed to it."""
        self._now = loop_clock()
        self.last_sent: float = self._now()
        """When replies were last handed to it, on the clock of `anyio.current_time`."""
        self.on_empty: Callable[[], object] | None = None
        """Called when it is `over`, if there is one."""
        self.muted: bool = False
        """Whether no more requests may begin for a time, whatever becomes of the replies."""
        self.mute: Callable[[float], object] = _unheard
        """Has it so for some seconds."""
        self._most_places = settings.max_outstanding
        self._most_bytes = settings.max_outstanding_bytes
        self._most_unsent = settings.max_unsent_bytes
        self._reply_bytes = 0  # of replies that wait for those before them
        self._deserted = False
        self.closed: bool = False
        """Whether no reply is waited for any more."""

    @property
    def busy(self) -> bool:
        """Whether tasks work on as many of the requests as they may."""
        return self.working >= _MOST_TASKS

    @property
    def over(self) -> bool:
        """Whether no reply is to leave any more: nothing is outstanding, or the connection ends at the first place."""
        return not self.places or self.places[0].last

    def full(self) -> bool:
        """Whether no more requests may begin before some of these replies have left."""
        if self._deserted:
            return self.channel is not None and self.working >= _MOST_TASKS
        assert self.channel is not None
        return (
            self.muted
            or self.working >= _MOST_TASKS
            or len(self.places) >= self._most_places
            or self.request_bytes >= self._most_bytes
            or self.channel.pending_bytes + self._reply_bytes >= self._most_unsent
        )

    def forget(self, slot: ReplySlot) -> None:
        """The request that has just begun needs no reply: it has no place."""
        assert self.places[-1] is slot
        self.places.pop()
        self.request_bytes -= slot.frame
        self.undone -= 1
        self.share.add(-slot.held, requests=-slot.frame)

    def place(self, slot: ReplySlot, reply: Reply | None) -> None:
        """The reply of a request is there; None if there is none."""
        if self._deserted:
            reply = None
        slot.done, slot.reply = True, reply
        self.undone -= 1
        size = 0 if reply is None else sum(map(len, reply))
        frame = slot.frame
        self._reply_bytes += size
        self.request_bytes -= frame
        self.share.add(size - slot.held, -frame)
        slot.frame, slot.held = 0, size

    def end_at(self, slot: ReplySlot) -> None:
        """No reply leaves but those before this request's, which has none."""
        slot.last = True
        self.place(slot, None)

    def release_frame(self, slot: ReplySlot) -> None:
        """The bytes of a request are not needed any more."""
        self.request_bytes -= slot.frame
        self.share.add(-slot.frame, requests=-slot.frame)
        slot.held -= slot.frame
        slot.frame = 0

    def flush(self) -> None:
        """Send the replies whose turn it is."""
        slots = self.places
        if slots and slots[0].done:
            parts: list[Buffer] = []
            size = 0
            while slots and slots[0].done and not slots[0].last:
                slot = slots.popleft()
                if slot.reply is not None:
                    parts.extend(slot.reply)
                    size += slot.held
            if parts and self.channel is not None:
                self.last_sent = self._now()
                self._reply_bytes -= size
                self.unsent += size
                self.written += size
                self.channel.write(parts)
                if not self.closed:
                    self._count_unsent()
        self._go_on()

    def _go_on(self) -> None:
        if not self.over:
            self.tell_next()
        elif self.on_empty is not None:
            self.on_empty()

    def is_next(self, slot: ReplySlot) -> bool:
        """See `ReplySlot.is_next`."""
        if self.closed or slot.done:
            return False
        before = 0 if self.channel is None else self.channel.pending_bytes
        if self.places[0] is not slot:
            if self.undone > 1:
                return False
            before += self._reply_bytes
        return before < self._most_unsent

    def is_first(self, slot: ReplySlot) -> bool:
        """Whether the replies behind this request wait for its own."""
        return bool(self.places) and self.places[0] is slot

    def hurry(self) -> None:
        """Something waits for memory: the first answer may be all that it waits for."""
        if self.crowded():
            self.tell_next()

    def tell_next(self) -> None:
        """The first reply may be what is waited for, or there may be memory for it."""
        if self.places and not self.places[0].done:
            self.places[0].told_next()

    # What became of the replies that were written.

    def progressed(self) -> None:
        """Some of what was pending has been written, and more is left."""
        self._count_unsent()
        self.tell_next()

    def drained(self) -> None:
        """All that was pending has been written."""
        self._count_unsent()
        self._go_on()

    def _count_unsent(self) -> None:
        if self.channel is None:
            return
        unsent = self.channel.pending_bytes
        if unsent != self.unsent:
            self.share.add(unsent - self.unsent)
            self.unsent = unsent

    # Its end.

    def detach(self) -> None:
        """The stream has ended; what has begun goes on."""
        self.channel = None
        self.share.add(-self.unsent)
        self.unsent = 0

    def desert(self) -> None:
        """The client has gone: nobody waits for its replies, and none is kept."""
        self._deserted = True
        for slot in self.places:
            if slot.done:
                self._reply_bytes -= slot.held
                self.share.add(-slot.held)
                slot.reply, slot.held = None, 0

    def close(self) -> None:
        """No reply is waited for any more; what was held is the share's business."""
        self.closed = True
        self.crowded, self.on_empty, self.mute = _never, None, _unheard  # so that no cycle keeps the connection
        self.places.clear()
        self.request_bytes = self._reply_bytes = self.unsent = self.undone = 0
