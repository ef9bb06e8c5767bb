"""The states of another gateway, as this one sees it, and which event leads where."""

from __future__ import annotations

from typing import Final

from kclient.state_tables import PlainEnum, StateTable


class GatewayState(PlainEnum):
    """What is known of another gateway."""

    ABSENT = "absent"
    """It has no row."""
    JOINING = "joining"
    """It has a row; its lease has not been looked at since."""
    LIVE = "live"
    """It holds its lease, as far as can be known."""
    LOST = "lost"
    """Its lease is over: it has crashed, or cannot reach the store."""


class GatewayEvent(PlainEnum):
    """What is seen of another gateway."""

    REGISTERED = "row of a new run"
    HELD = "its lease is held"
    OVER = "its lease is over"
    LEFT = "row removed"


GATEWAY_TABLE: Final[StateTable[GatewayState, GatewayEvent]] = {
    GatewayState.ABSENT: {GatewayEvent.REGISTERED: GatewayState.JOINING},
    GatewayState.JOINING: {
        GatewayEvent.REGISTERED: GatewayState.JOINING,
        GatewayEvent.HELD: GatewayState.LIVE,
        GatewayEvent.OVER: GatewayState.LOST,
        GatewayEvent.LEFT: GatewayState.ABSENT,
    },
    GatewayState.LIVE: {
        GatewayEvent.REGISTERED: GatewayState.JOINING,
        GatewayEvent.OVER: GatewayState.LOST,
        GatewayEvent.LEFT: GatewayState.ABSENT,
    },
    GatewayState.LOST: {
        GatewayEvent.REGISTERED: GatewayState.JOINING,
        GatewayEvent.HELD: GatewayState.LIVE,
        GatewayEvent.LEFT: GatewayState.ABSENT,
    },
}
