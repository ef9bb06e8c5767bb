"""Tasks with an owner, and the few primitives that asyncio and trio need in common.

- `Supervisor` owns the background tasks of one object (a producer, a connection, a gateway). No exception
  escapes from them: the first one becomes the object's stored failure, which `check` raises at the next public
  call. Neither the user's code is cancelled nor an ExceptionGroup raised.
- `to_the_end` awaits clean-up that no cancellation breaks off; `thread_to_the_end` does so with a thread.
- `Gate` is what one task waits for until it is opened.
- `Completion` is a result that arrives later, `Timer` a callback at a time, both without a task on asyncio.
- `MomentLock` and `check_none_held` keep a signal handler from waiting for the very call that it came amid.
- `NamedLocks` are locks by name, for work on one thing of many.
- `drive` and `drive_async` carry out scripts: logic that is written once for async and blocking faces.
- `side_by_side` makes calls at once, so that one which fails or hangs holds up no other.
- `ThreadSignal` wakes one waiting thread, whatever signals its handlers raise exceptions for.
- `Wakeup` wakes one waiting task from any thread; any number of `set` before the wake count as one.

The tasks are the event loop's own, so that objects may be closed from any task, in any order and inside any scope.
"""

from kclient.concurrency.backend import LoopHandle as LoopHandle
from kclient.concurrency.backend import current_backend as current_backend
from kclient.concurrency.backend import loop_clock as loop_clock
from kclient.concurrency.backend import loop_soon as loop_soon
from kclient.concurrency.cleanup import thread_to_the_end as thread_to_the_end
from kclient.concurrency.cleanup import to_the_end as to_the_end
from kclient.concurrency.completion import Completion as Completion
from kclient.concurrency.completion import Wakeup as Wakeup
from kclient.concurrency.frames import stands_in as stands_in
from kclient.concurrency.gate import Gate as Gate
from kclient.concurrency.moments import HeldLock as HeldLock
from kclient.concurrency.moments import MomentLock as MomentLock
from kclient.concurrency.moments import check_none_held as check_none_held
from kclient.concurrency.moments import watch_lock as watch_lock
from kclient.concurrency.named_locks import NamedLocks as NamedLocks
from kclient.concurrency.scripts import drive as drive
from kclient.concurrency.scripts import drive_async as drive_async
from kclient.concurrency.side_by_side import side_by_side as side_by_side
from kclient.concurrency.supervisor import Supervisor as Supervisor
from kclient.concurrency.supervisor import SupervisorState as SupervisorState
from kclient.concurrency.supervisor import TaskHandle as TaskHandle
from kclient.concurrency.supervisor import first_leaf as first_leaf
from kclient.concurrency.thread_signal import ThreadSignal as ThreadSignal
from kclient.concurrency.timer import Timer as Timer

__all__ = [
    "Completion",
    "Gate",
    "HeldLock",
    "LoopHandle",
    "MomentLock",
    "NamedLocks",
    "Supervisor",
    "SupervisorState",
    "TaskHandle",
    "ThreadSignal",
    "Timer",
    "Wakeup",
    "check_none_held",
    "current_backend",
    "drive",
    "drive_async",
    "first_leaf",
    "loop_clock",
    "loop_soon",
    "side_by_side",
    "stands_in",
    "thread_to_the_end",
    "to_the_end",
    "watch_lock",
]
