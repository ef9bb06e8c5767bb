"""Tables that decide: which event leads from which state to which."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from kclient.errors import IllegalStateError


class PlainEnum(Enum):
    """An enum whose members are looked up in tables as fast as other objects: Enum's own hash is a Python function."""

    if not TYPE_CHECKING:
        __hash__ = object.__hash__


S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
StateTable: TypeAlias = dict[S, dict[E, S]]
"""From each state, which event leads where; others are illegal."""


def next_state(table: StateTable[S, E], state: S, event: E, whose: object = None) -> S:
    """Where an event leads.

    Args:
        table: Of the state machine.
        state: The present one.
        event: What happened.
        whose: The machine, for the error; None for what the states are called.

    Raises:
        IllegalStateError: It must not happen in this state: a bug in the state machine.
    """
    following = table[state].get(event)
    if following is None:
        whose = type(state).__name__ if whose is None else whose
        raise IllegalStateError(f"{whose}: {event.name} must not happen in {state.name}")
    return following


def diagram(table: StateTable[S, E]) -> str:
    """The table as a Mermaid state diagram."""
    order = list(table)
    lines = ["stateDiagram-v2", f"    [*] --> {order[0].name}"]
    for state in order:
        lines += [f"    {state.name} --> {following.name}: {event.value}" for event, following in table[state].items()]
        lines += [] if table[state] else [f"    {state.name} --> [*]"]
    return "\n".join(lines)
