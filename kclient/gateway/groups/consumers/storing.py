"""How the rows of consumer groups and of their members are made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from kclient.gateway.groups.changed_rows import RowFormat
from kclient.gateway.rows.consumer_groups import (
    ConsumerMemberSnapshot,
    encode_consumer_group,
    encode_consumer_member,
    encode_consumer_member_steps,
)

if TYPE_CHECKING:
    from kclient.gateway.groups.consumers.member import ConsumerMember
    from kclient.gateway.groups.consumers.roster import ConsumerRoster
    from kclient.gateway.groups.writer import Row

_SHORT: Final = 500
"""Topics that a row has which is made in one go."""


def consumer_rows(members: ConsumerRoster) -> RowFormat:
    """How the rows of groups of consumers are made, of these members."""

    def row(member_id: str) -> Callable[[], Row]:
        member = members.get(member_id)
        return partial(_row_of, None if member is None else _snapshot_of(member))

    return RowFormat(encode_consumer_group, row)


def _row_of(member: ConsumerMemberSnapshot | None) -> Row:
    """The row of a member, None for one that has gone; where it is long it is made in steps."""
    if member is None:
        return None
    if len(member.assigned) + len(member.revoking) + len(member.target) > _SHORT:
        return partial(encode_consumer_member_steps, member)
    return encode_consumer_member(member)


def _snapshot_of(member: ConsumerMember) -> ConsumerMemberSnapshot:
    """A member as it is now."""
    return ConsumerMemberSnapshot(
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.subscription.topics,
        member.subscription.pattern,
        member.assignor,
        member.epoch,
        member.previous_epoch,
        member.state.value,
        member.assigned,
        member.revoking,
        member.target,
        None if member.classic is None else member.classic.session_timeout_ms,
        () if member.classic is None else member.classic.protocols,
    )
