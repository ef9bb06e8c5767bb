"""What a server's handler answers a request with: at once, later, or worked out in steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from kclient.concurrency import Completion
from kclient.types import Buffer

__all__ = ["FRAME_READ", "Answer", "CloseConnectionError", "FrameRead", "Later", "Reply", "Steps", "Work"]

Reply: TypeAlias = Sequence[Buffer]
"""A whole frame with its leading size, in parts. The buffers must not change until they have been sent."""


class CloseConnectionError(Exception):
    """A request that cannot be answered: its connection is closed, with this text in the log."""


class FrameRead(Enum):
    """That what came with a request has been read: its bytes are not needed while it waits."""

    READ = "read"


FRAME_READ: Final = FrameRead.READ

Work: TypeAlias = "Generator[int | Completion[Any] | FrameRead | None, None, Any]"
"""What is done in steps: each `yield` is a place to pause. It yields the bytes of memory that it has taken (below 0:
given back) since the last one, or a `Completion` to go on after, or `FRAME_READ`, or None."""


@dataclass(slots=True, frozen=True)
class Later:
    """An answer that costs no task: a reply is made of what completes."""

    completion: Completion[Any]
    reply: Callable[[Completion[Any]], Reply | Steps | None]
    """Makes the reply when the completion is done; it raises as `RequestHandler.begin` does."""


@dataclass(frozen=True, slots=True)
class Steps:
    """An answer that is worked out in steps, because it would hold up the others."""

    work: Work
    """Returns what `RequestHandler.begin` may return; the next request of the connection begins after that."""
    lasting: bool = False
    """Whether it goes on when the client has gone; else it is closed."""


Answer: TypeAlias = "Reply | Awaitable[Reply | Steps | None] | Later | Steps | None"
"""What a request handler returns for a request."""
