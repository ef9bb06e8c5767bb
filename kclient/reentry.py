"""What is said to code that comes amid a call in its own thread, and cannot wait for that call."""

from __future__ import annotations

from kclient.errors import IllegalStateError

__all__ = ["reentered"]


def reentered(call: str = "a call of a client") -> IllegalStateError:
    """The exception for what such code must not do.

    Args:
        call: What it came amid, as a part of the sentence.
    """
    return IllegalStateError(
        f"This is a signal handler or a finalizer (or a log handler within one) that came amid {call} in this thread, "
        "and would wait for it for ever: let it set a flag or raise an exception, and do the rest afterwards"
    )
