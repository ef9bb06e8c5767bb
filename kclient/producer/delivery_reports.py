"""What the user is to be told of finished batches: callbacks, run in the user's thread, and failures not seen yet.

Batches finish in the sender's task. What the user is to be told is collected here and handed over by `send`,
`flush`, `close` and awaited deliveries, in the thread or task that calls them.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Coroutine
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from kclient.concurrency import MomentLock, ThreadSignal, stands_in
from kclient.errors import DeliveryError, FailedDelivery, IllegalStateError, KafkaTimeoutError
from kclient.producer.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.errors import KafkaError
    from kclient.producer.batch import ProducerBatch

logger: logging.Logger = logging.getLogger("kclient.producer")

_REMEMBERED_FAILURES = 1000
"""Failed batches that are kept to find out who has seen them; of older ones only the numbers are kept."""


def _anywhere() -> None:
    """Nobody knows a loop."""


class DeliveryReports:
    """The finished batches of one producer. Thread-safe.

    Args:
        check_loop: Raises in another event loop than the one where batches are completed.
        check_alive: Raises if the thread that completes batches is gone; None if `block_on` is not for this producer.
    """

    def __init__(
        self, check_loop: Callable[[], None] = _anywhere, check_alive: Callable[[], object] | None = None
    ) -> None:
        # A signal handler or a finalizer may come amid what either guards, and find it whole enough.
        self.lock: MomentLock = MomentLock()
        self.check_loop: Callable[[], None] = check_loop
        self._check_alive = check_alive
        self._guard: MomentLock = MomentLock()
        """For the following three. No `Condition`: see `ThreadSignal`."""
        self._ready: deque[ProducerBatch] = deque()
        self._telling: dict[int, ProducerBatch] = {}
        """The batches whose callbacks are being called, by thread."""
        self._waiting: list[ThreadSignal] = []
        """Set whenever a thread is through with the callbacks of a batch; each once."""
        self._settling: set[int] = set()
        """Threads where a callback called `flush` or `close`."""
        self._afterwards: dict[int, Callable[[], None]] = {}
        """What comes after the callbacks that a thread is calling."""
        self._failed: deque[ProducerBatch] = deque()
        self._forgotten: list[FailedDelivery] = []

    def forget(self) -> None:
        """In a forked child: callbacks are the parent's, and what a lost thread may hold is replaced, not touched."""
        self.lock = MomentLock()
        self._guard = MomentLock()
        self._ready = deque()
        self._telling = {}

    def add(self, batch: ProducerBatch) -> None:
        """A batch succeeded or failed."""
        if batch.callbacks:
            batch.callbacks.reverse()  # they are taken from the end
            with self._guard:
                self._ready.append(batch)
        if batch.state is not BatchState.FAILED:
            return
        with self.lock:
            self._failed.append(batch)
            if len(self._failed) > _REMEMBERED_FAILURES:
                self._remember(self._failed.popleft(), self._forgotten)

    # ------------------------------------------------------------------ callbacks

    @property
    def callbacks_due(self) -> bool:
        """Whether `run_callbacks` has something to do; cheap."""
        return bool(self._ready)

    def run_callbacks(self) -> None:
        """Call what is due now, in the caller's thread, in the order in which the batches finished.

        Within a callback it returns at once: a callback may send, and those of what it sends come after it.
        """
        thread = threading.get_ident()
        if not self._ready or self._is_telling(thread):
            return
        again = True
        while again:
            # no more than there are now: callbacks that send would keep the caller for ever
            for _ in range(len(self._ready)):
                if not self._tell_next(thread):
                    break  # another thread took them
            again = thread in self._settling
            self._settling.discard(thread)
        if afterwards := self._afterwards.pop(thread, None):
            afterwards()

    def after_callbacks(self, function: Callable[[], None]) -> None:
        """Call something: after all callbacks that this thread is calling, or now."""
        thread = threading.get_ident()
        if self._is_telling(thread):
            self._afterwards[thread] = function
        else:
            function()

    def _tell_next(self, thread: int) -> bool:
        """Call the callbacks of the next batch; False if there is none.

        What is left of them when one is interrupted, such as by Ctrl-C, stays due; wherever that comes, also between
        the lines here, where the end is done once more.
        """
        try:
            try:
                with self._guard:
                    if not self._ready:
                        return False
                    self._telling[thread] = self._ready[0]
                    self._ready.popleft()
                self._tell(self._telling[thread])
            finally:
                self._told(thread)
        except BaseException:
            self._told(thread)
            raise
        return True

    def _tell(self, batch: ProducerBatch) -> None:
        failed = batch.state is BatchState.FAILED
        while batch.callbacks:
            index, callback = batch.callbacks[-1]
            if failed:
                batch.observe(index)
            metadata = None if failed else batch.metadata(index)
            error = batch.error_of(index) if failed else None
            del batch.callbacks[-1]  # just before the call: it is not called twice
            try:
                made: object = callback(metadata, error)
            except Exception:
                logger.exception("on_delivery callback of a record for %s raised", batch.tp)
            else:
                if made is not None and isinstance(made, Coroutine):
                    made.close()
                    batch.unobserve(index)  # it has told nobody
                    logger.error("on_delivery of a record for %s gave a coroutine, which nobody awaits", batch.tp)

    def _told(self, thread: int) -> None:
        """A thread is through with a batch; may be called again."""
        with self._guard:
            batch = self._telling.get(thread)
            if batch is not None:
                if batch.callbacks:
                    if not self._ready or self._ready[0] is not batch:
                        self._ready.appendleft(batch)
                    self._settling.discard(thread)
                del self._telling[thread]
            waiting, self._waiting = self._waiting, []
        for signal in waiting:
            signal.set()

    def _is_telling(self, thread: int) -> bool:
        """Whether this thread is calling a callback.

        Several exceptions in a row may have cut off the end of that: then it is done now.
        """
        if thread not in self._telling:
            return False
        if stands_in(sys._getframe(), _TELL_NEXT, "self", self):
            return True
        self._told(thread)
        return False

    def _forget_dead(self, batches: list[ProducerBatch]) -> None:
        """The same for other threads, of batches that are taking long."""
        for left in reversed(range(_LOOKS)):
            with self._guard:  # a thread that tells, or has told, needs it to say so
                frames = sys._current_frames()
                dead = [
                    thread
                    for thread, batch in self._telling.items()
                    if batch in batches and not stands_in(frames.get(thread), _TELL_NEXT, "self", self)
                ]
                if not left:
                    for thread in dead:
                        self._told(thread)
            del frames
            if not dead:
                return
            sleep(0.001)

    def settle(self, deadline: float | None) -> bool:
        """`run_callbacks`, and wait for those that other threads are calling.

        Args:
            deadline: When to wait no longer (`time.monotonic`); None waits as long as they take.

        Returns:
            Whether all that was due when it began has been called. Within a callback nothing is waited for; what is due
            comes after it.
        """
        thread = threading.get_ident()
        if self._is_telling(thread):
            self._settling.add(thread)
            return True
        with self._guard:
            due = [*self._ready, *self._telling.values()]
        while True:
            self.run_callbacks()
            with self._guard:
                telling = list(self._telling.values())
                due = [batch for batch in due if batch.callbacks or batch in telling]
                if not due:
                    return True
                if not telling:
                    continue  # the other thread was interrupted, and left them to us
                self._waiting.append(through := ThreadSignal())
            # in slices: on Windows, Ctrl-C does not end an endless wait
            left = 1.0 if deadline is None else min(deadline - monotonic(), 1.0)
            if left <= 0:
                return False
            if not through.wait(left):
                self._forget_dead(telling)

    # ------------------------------------------------------------------ failures

    def take_failures(self) -> DeliveryError | None:
        """The failures since the last call that nobody has seen, as one error; None if there are none."""
        with self.lock:
            failed, self._failed = self._failed, deque()
            failures, self._forgotten = self._forgotten, []
        for batch in failed:
            self._remember(batch, failures)
        if not failures:
            return None
        count = sum(failure.count for failure in failures)
        first = failures[0]
        text = f"{count} records were not delivered; the first of them to {first.topic}-{first.partition}"
        error = DeliveryError(f"{text}: {first.error}", failures=failures)
        error.__cause__ = first.error
        return error

    @staticmethod
    def _remember(batch: ProducerBatch, failures: list[FailedDelivery]) -> None:
        unseen = batch.count - len(batch.observed or ())
        if unseen <= 0 or batch.error is None:
            return
        last = failures[-1] if failures else None
        if last is not None and (last.topic, last.partition) == batch.tp and _alike(last.error, batch.error):
            failures[-1] = last._replace(count=last.count + unseen)
        else:
            failures.append(FailedDelivery(batch.tp.topic, batch.tp.partition, unseen, batch.error))

    # ------------------------------------------------------------------ blocking code

    def block_on(self, batch: ProducerBatch, index: int, timeout: float | None) -> None:
        """Wait in this thread until the fate of a record is known.

        Raises:
            KafkaTimeoutError: It is not known in time.
            IllegalStateError: The producer is not a blocking one.
        """
        deadline = None if timeout is None else monotonic() + timeout
        batch, index = batch.locate(index)
        while not batch.done:
            if self._check_alive is None:
                raise IllegalStateError("The delivery is still on its way: await it (result() is for kclient.sync)")
            known = ThreadSignal()
            if batch.add_waiter(known.set):
                try:
                    self._wait(known, deadline)
                finally:
                    batch.remove_waiter(known.set)
            batch, index = batch.locate(index)

    def _wait(self, known: ThreadSignal, deadline: float | None) -> None:
        """Wait in slices, because a thread that died sets no event."""
        while True:
            assert self._check_alive is not None
            self._check_alive()
            left = 1.0 if deadline is None else min(deadline - monotonic(), 1.0)
            if known.wait(left):
                return
            if deadline is not None and monotonic() >= deadline:
                raise KafkaTimeoutError("The record is still on its way (delivery.timeout.ms bounds how long)")


_TELL_NEXT: Final = DeliveryReports._tell_next.__code__
_LOOKS: Final = 20


def _alike(one: KafkaError, other: KafkaError) -> bool:
    return type(one) is type(other) and one.code == other.code
