"""Reads, processes and writes exactly once: the loop of a consumer and a transactional producer, written once.

- `process` does it for asyncio and trio, `process_blocking` for the clients of `kclient.sync`.
- `Processor` and `BlockingProcessor` are the same as objects, which can be stopped and tell their progress.
- `Raise`, `Skip`, `Retry` and `DeadLetter` say what becomes of records that cannot be processed.

`ProcessingLoop` decides what comes next, as scripts without I/O that both processors carry out. The `Backlog` knows
what was read and is not committed yet; `outcomes` what errors mean.
"""

from __future__ import annotations

from kclient.processing.blocking import BlockingProcessFunction as BlockingProcessFunction
from kclient.processing.blocking import BlockingProcessor as BlockingProcessor
from kclient.processing.blocking import process_blocking as process_blocking
from kclient.processing.failures import DeadLetter as DeadLetter
from kclient.processing.failures import FailureAction as FailureAction
from kclient.processing.failures import OnError as OnError
from kclient.processing.failures import ProcessingFailure as ProcessingFailure
from kclient.processing.failures import Raise as Raise
from kclient.processing.failures import Retry as Retry
from kclient.processing.failures import Skip as Skip
from kclient.processing.processor import AsyncOutputs as AsyncOutputs
from kclient.processing.processor import Outputs as Outputs
from kclient.processing.processor import ProcessFunction as ProcessFunction
from kclient.processing.processor import Processor as Processor
from kclient.processing.processor import process as process
from kclient.processing.progress import ProcessingProgress as ProcessingProgress

__all__ = [
    "AsyncOutputs",
    "BlockingProcessFunction",
    "BlockingProcessor",
    "DeadLetter",
    "FailureAction",
    "OnError",
    "Outputs",
    "ProcessFunction",
    "ProcessingFailure",
    "ProcessingProgress",
    "Processor",
    "Raise",
    "Retry",
    "Skip",
    "process",
    "process_blocking",
]
