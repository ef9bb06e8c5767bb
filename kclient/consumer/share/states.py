"""The states of a member of a share group, and of its session with one broker: which event leads where (KIP-932).

`docs/internals/share.md` draws the tables below; a test compares both.
"""

from __future__ import annotations

from kclient.state_tables import PlainEnum, StateTable


class ShareState(PlainEnum):
    """Where a member stands in its share group."""

    UNJOINED = "unjoined"
    """Not in the group: not subscribed, not polled yet, or it left."""
    JOINING = "joining"
    """A heartbeat with epoch 0 is due or on its way."""
    STABLE = "stable"
    """A member; it reads what the broker has assigned, as far as that is known."""
    FAILED = "failed"
    """The group refused this member; the next poll raises the reason and tries again."""


class ShareEvent(PlainEnum):
    """What happens to a member."""

    POLLED = "polled"
    """The user polls, and is subscribed."""
    JOINED = "joined"
    """The broker has taken the member in."""
    EXPELLED = "expelled"
    """The broker does not count on this member any more."""
    LEFT = "left"
    """The user unsubscribes or closes, or `max.poll.interval.ms` is over."""
    REFUSED = "refused"
    """The group does not take this member."""
    RAISED = "raised"
    """The poll has raised why the group refused this member."""


_IN_GROUP = {ShareEvent.LEFT: ShareState.UNJOINED, ShareEvent.REFUSED: ShareState.FAILED}

SHARE_TABLE: StateTable[ShareState, ShareEvent] = {
    ShareState.UNJOINED: {ShareEvent.POLLED: ShareState.JOINING, ShareEvent.REFUSED: ShareState.FAILED},
    ShareState.JOINING: {
        ShareEvent.JOINED: ShareState.STABLE,
        ShareEvent.EXPELLED: ShareState.JOINING,
        **_IN_GROUP,
    },
    ShareState.STABLE: {ShareEvent.EXPELLED: ShareState.JOINING, **_IN_GROUP},
    ShareState.FAILED: {ShareEvent.RAISED: ShareState.UNJOINED, ShareEvent.LEFT: ShareState.UNJOINED},
}


class ShareSessionState(PlainEnum):
    """A share session, as far as this side knows."""

    NEW = "new"
    """The broker has none: a fetch with epoch 0 begins it."""
    OPEN = "open"
    """The broker knows the partitions, and holds records for this member."""
    ENDING = "ending"
    """The broker is told that it ends: it takes the last acknowledgements, and gives back what it holds."""


class ShareSessionEvent(PlainEnum):
    """What happens to a share session."""

    OPENED = "opened"
    """The broker has answered the first fetch."""
    ENDS = "ends"
    """The request that ends it goes out."""
    ENDED = "ended"
    """The broker has answered that."""
    LOST = "lost"
    """The broker has dropped it, or nothing is certain: it did not answer."""


SHARE_SESSION_TABLE: StateTable[ShareSessionState, ShareSessionEvent] = {
    ShareSessionState.NEW: {
        ShareSessionEvent.OPENED: ShareSessionState.OPEN,
        ShareSessionEvent.LOST: ShareSessionState.NEW,
    },
    ShareSessionState.OPEN: {
        ShareSessionEvent.ENDS: ShareSessionState.ENDING,
        ShareSessionEvent.LOST: ShareSessionState.NEW,
    },
    ShareSessionState.ENDING: {
        ShareSessionEvent.ENDED: ShareSessionState.NEW,
        ShareSessionEvent.LOST: ShareSessionState.NEW,
    },
}
