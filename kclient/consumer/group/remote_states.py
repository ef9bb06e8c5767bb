"""The states of a group member whose partitions the broker assigns (KIP-848): which event leads where.

`docs/internals/coordinator.md` draws the table below; a test compares both.
"""

from __future__ import annotations

from kclient.state_tables import PlainEnum


class RemoteState(PlainEnum):
    """Where a member stands in the consumer group protocol."""

    UNJOINED = "unjoined"
    """Not in the group: not subscribed, not polled yet, or it left."""
    PREPARING = "preparing"
    """About to join, or to tell of another subscription: the next poll gives up what must not be kept."""
    JOINING = "joining"
    """A heartbeat with epoch 0 is due or on its way."""
    RECONCILING = "reconciling"
    """The broker assigns something else than what is read: the next poll gives partitions up and takes others over."""
    STABLE = "stable"
    """A member that reads what the broker has assigned, as far as that is known."""
    FAILED = "failed"
    """The group refused this member; the next poll raises the reason and, if it may, tries again."""
    FENCED = "fenced"
    """Another consumer took over this `group.instance.id`: the end."""


class RemoteEvent(PlainEnum):
    """What happens to a member."""

    POLLED = "polled"
    """The user polls, and is subscribed."""
    SUBSCRIBED = "subscribed"
    """The user subscribed to something else."""
    PREPARED = "prepared"
    """The poll has given up what must not be kept, and there is no membership: join."""
    RESUMED = "resumed"
    """The poll has given up what must not be kept, and the membership goes on."""
    JOINED = "joined"
    """The broker has taken the member in."""
    TARGETED = "targeted"
    """The broker assigns something else than what is read, and the topics' names are known."""
    RECONCILED = "reconciled"
    """The poll reads what was assigned; or the broker has changed its mind, and assigns what is read."""
    EXPELLED = "expelled"
    """The broker does not count on this member any more."""
    LEFT = "left"
    """The user unsubscribes or closes, or `max.poll.interval.ms` is over."""
    REFUSED = "refused"
    """The group does not take this member."""
    TAKEN_OVER = "taken over"
    """Another consumer has the same `group.instance.id`."""
    RAISED = "raised"
    """The poll has raised why the group refused this member."""


_IN_GROUP = {
    RemoteEvent.LEFT: RemoteState.UNJOINED,
    RemoteEvent.REFUSED: RemoteState.FAILED,
    RemoteEvent.TAKEN_OVER: RemoteState.FENCED,
    RemoteEvent.EXPELLED: RemoteState.PREPARING,
}

REMOTE_TABLE: dict[RemoteState, dict[RemoteEvent, RemoteState]] = {
    RemoteState.UNJOINED: {
        RemoteEvent.POLLED: RemoteState.PREPARING,
        RemoteEvent.REFUSED: RemoteState.FAILED,
    },
    RemoteState.PREPARING: {
        RemoteEvent.PREPARED: RemoteState.JOINING,
        RemoteEvent.RESUMED: RemoteState.STABLE,
        **_IN_GROUP,
    },
    RemoteState.JOINING: {RemoteEvent.JOINED: RemoteState.STABLE, **_IN_GROUP},
    RemoteState.RECONCILING: {
        RemoteEvent.RECONCILED: RemoteState.STABLE,
        RemoteEvent.SUBSCRIBED: RemoteState.PREPARING,
        **_IN_GROUP,
    },
    RemoteState.STABLE: {
        RemoteEvent.TARGETED: RemoteState.RECONCILING,
        RemoteEvent.SUBSCRIBED: RemoteState.PREPARING,
        **_IN_GROUP,
    },
    RemoteState.FAILED: {
        RemoteEvent.RAISED: RemoteState.UNJOINED,
        RemoteEvent.LEFT: RemoteState.UNJOINED,
    },
    RemoteState.FENCED: {},
}
