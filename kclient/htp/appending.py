"""What a backend checks before it appends messages whose positions are their ordinals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kclient.htp.errors import OrderError
from kclient.htp.rows import GREATEST

if TYPE_CHECKING:
    from kclient.htp.port import Framing, MessageInfo
    from kclient.types import Buffer


def inspect_all(
    name: object, framing: Framing, messages: Sequence[Buffer], expected: int, *, dense: bool
) -> list[MessageInfo]:
    """What messages say of themselves that may be appended together, in this order.

    Args:
        name: Of the topic, for people.
        framing: The topic's.
        messages: Each buffer is to be one message.
        expected: The topic's next ordinal.
        dense: Whether each message has to begin with the one that is next.

    Raises:
        OrderError: If one does not follow on what is before it.
        ValueError: If a buffer is not one message, if there is none, or if no row could tell what is next then.
    """
    infos = []
    for message in messages:
        info = framing.inspect(message, 0)
        if info.length != len(message):
            raise ValueError(f"a message of {info.length} bytes was sent in a buffer of {len(message)}")
        first, last = info.first, info.last
        if first < expected or last < first or (first > expected and dense):
            raise OrderError(f"{name}: ordinals {first} to {last} do not follow on {expected}, the next one")
        if last >= GREATEST:
            raise ValueError(f"{name}: ordinal {last} is too large to be recorded")
        expected = last + 1
        infos.append(info)
    if not infos:
        raise ValueError("no message to send")
    return infos
