"""Whether a call is under way, as a thread's frames tell: signals may have cut off what it would have noted down."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType, FrameType

__all__ = ["stands_in"]


def stands_in(frame: FrameType | None, code: CodeType, variable: str, value: object) -> bool:
    """Whether a frame, or one of its callers, runs this code with this value in one of its variables.

    What runs in another thread meanwhile may hide a call from one look (a generator that yields leaves its caller), not
    from all of them.
    """
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get(variable) is value:
            return True
        frame = frame.f_back
    return False
