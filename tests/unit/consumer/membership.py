"""What tests look at that `group_metadata` does not tell: it goes on saying who a member was that was lost."""

from __future__ import annotations

import kclient


def present_member(consumer: kclient.Consumer) -> str:
    """The id that it has in its group now; empty once it was lost."""
    return consumer._core.group().member.metadata.member_id
