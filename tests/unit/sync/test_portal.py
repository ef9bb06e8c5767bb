"""The portal thread: calls, exceptions, Ctrl-C, forks, its end."""

from __future__ import annotations

import _thread
import asyncio
import linecache
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from types import FrameType
from typing import Any

import pytest

from kclient.errors import ClosedError, IllegalStateError
from kclient.sync.portal import Portal, get_portal


@pytest.fixture
def portal() -> Iterator[Portal]:
    made = Portal("test-portal")
    yield made
    made.stop()
    assert not made.usable


async def double(value: int, *, plus: int = 0) -> int:
    await asyncio.sleep(0)
    return 2 * value + plus


def test_a_call_returns_what_the_coroutine_returns(portal: Portal) -> None:
    assert portal.call(double, 4, plus=1) == 9
    assert threading.current_thread().name != portal.call(_thread_name) == "test-portal"


class Waiting(logging.Handler):
    """Waits for the loop, and is what the loop logs with."""

    def __init__(self, portal: Portal) -> None:
        super().__init__()
        self.portal = portal
        self.outcome: BaseException | int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "from outside":
            try:
                self.outcome = self.portal.call(self.answer)
            except IllegalStateError as error:
                self.outcome = error

    async def answer(self) -> int:
        logger.warning("from the loop")
        return 7


logger = logging.getLogger("tests.portal")


def test_a_logging_handler_that_waits_for_the_loop_while_the_loop_logs_with_it(portal: Portal) -> None:
    """Each would wait for the other, for ever."""
    handler = Waiting(portal)
    logger.addHandler(handler)
    try:
        logger.warning("from outside")
        assert isinstance(handler.outcome, IllegalStateError)
        assert "Waiting waits for a client that waits for Waiting" in str(handler.outcome)
        assert portal.call(double, 1) == 2, "the loop goes on"
        handler.outcome = None
        queue: SimpleQueue[Any] = SimpleQueue()
        listener = QueueListener(queue, handler)
        logger.removeHandler(handler)
        logger.addHandler(relay := QueueHandler(queue))
        listener.start()
        try:
            logger.warning("from outside")
        finally:
            listener.stop()
            logger.removeHandler(relay)
        assert handler.outcome == 7
    finally:
        logger.removeHandler(handler)


async def _thread_name() -> str:
    return threading.current_thread().name


def test_a_call_raises_what_the_coroutine_raises(portal: Portal) -> None:
    async def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        portal.call(fail)


def test_a_timeout_of_the_coroutine_is_its_own(portal: Portal) -> None:
    async def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        portal.call(fail)


def test_calls_from_many_threads(portal: Portal) -> None:
    results: list[int] = []

    def work(number: int) -> None:
        results.append(portal.call(double, number))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(results) == [2 * n for n in range(20)]


def test_a_call_from_inside_is_refused(portal: Portal) -> None:
    async def inside() -> None:
        portal.call(double, 1)

    with pytest.raises(IllegalStateError, match="wait for ever"):
        portal.call(inside)


def test_ctrl_c_raises_at_once_and_cancels_the_coroutine(portal: Portal) -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def forever() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt() -> None:
        started.wait(10)
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        portal.call(forever)
    thread.join(10)
    assert cancelled.wait(10)
    assert portal.call(double, 1) == 2, "the portal goes on"


def test_an_interrupt_leaves_the_portal_known_to_run(portal: Portal) -> None:
    """Wherever it comes: a `Thread.is_alive` that it hits takes the thread for dead for good (CPython's bpo-45274)."""

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and "lock.acquire" in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
            raise KeyboardInterrupt
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with suppress(KeyboardInterrupt):
            portal.check()
        with suppress(KeyboardInterrupt):
            assert portal.usable
    finally:
        sys.settrace(before)
    assert portal.usable
    assert portal.call(_thread_name) == "test-portal"


def test_a_portal_that_ended_says_so(portal: Portal) -> None:
    portal.stop()
    with pytest.raises(ClosedError):
        portal.call(double, 1)
    portal.call_soon(print)  # ignored


def test_a_call_that_waits_while_the_portal_ends_is_not_left_behind(portal: Portal) -> None:
    started = threading.Event()

    async def forever() -> None:
        started.set()
        await asyncio.sleep(3600)

    def stop() -> None:
        started.wait(10)
        portal.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(ClosedError):
        portal.call(forever)
    thread.join(10)


def test_all_share_one_portal_and_a_dead_one_is_replaced() -> None:
    first = get_portal()
    assert get_portal() is first
    first.stop()
    second = get_portal()
    assert second is not first
    assert second.call(double, 2) == 4


@pytest.mark.slow
def test_the_interpreter_exits_although_nobody_stopped_the_portal() -> None:
    code = "from kclient.sync.portal import get_portal; get_portal(); print('done')"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")


@pytest.mark.slow
def test_nothing_starts_at_import() -> None:
    code = "import threading, kclient.sync.portal, kclient.sync.producer; print(threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "1", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork_the_child_starts_its_own() -> None:
    code = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads: what is tested
from kclient.errors import IllegalStateError
from kclient.sync.portal import get_portal
async def f(): return 5
portal = get_portal()
portal.call(f)
pid = os.fork()
if pid == 0:
    try:
        portal.call(f)
    except IllegalStateError as error:
        ok = "forked" in str(error) and get_portal().call(f) == 5 and get_portal() is not portal
        os._exit(0 if ok else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), portal.call(f))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["0", "5"], done.stderr
