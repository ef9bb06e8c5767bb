"""Members of groups: removing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kclient.admin.answers import check_code, failure, told_late
from kclient.admin.arguments import check_group
from kclient.admin.base import Outcome
from kclient.admin.describing import CLASSIC
from kclient.admin.groups import GroupOperations
from kclient.admin.types import raise_failures
from kclient.arguments import as_names, check_text, shown
from kclient.cluster import GROUP, Trial, version_for
from kclient.errors import KafkaError, UnknownMemberIdError, UnsupportedVersionError
from kclient.protocol.messages import LeaveGroupRequest, LeaveGroupRequestMember, LeaveGroupResponse

_FIRST_WITH_MEMBERS = 3
"""The first version of LeaveGroup that removes others than who asks (KIP-345)."""
_LONGEST_REASON = 255
"""Characters of a reason; brokers refuse no longer one, but the Java client sends no more of it (KIP-800)."""
_REASON = "removed by an admin client"


class _Identity(NamedTuple):
    """What names a member to its coordinator: its instance id, or that it has none and its member id."""

    member_id: str
    instance_id: str | None

    @classmethod
    def of(cls, member_id: str, instance_id: str | None) -> _Identity:
        return cls(member_id, None) if instance_id is None else cls("", instance_id)

    def __str__(self) -> str:
        return self.member_id if self.instance_id is None else self.instance_id


class GroupMemberOperations(GroupOperations):
    """The admin client's calls about members of groups."""

    async def remove_members_from_consumer_group(
        self,
        group_id: str,
        members: Iterable[str] | None = None,
        *,
        reason: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Has members leave a group, which then balances without them (KIP-345; Kafka 2.4).

        It is for members that are gone and will not return: one that is still there joins again, as another. Members of
        the consumer protocol (KIP-848) are removed by Kafka 4.3 too; share groups have none that could be.

        Args:
            group_id: the group.
            members: static members, each by its `group.instance.id`; None removes all members, dynamic ones too.
            reason: why, for the coordinator's log (KIP-800; Kafka 3.2); the first 255 characters of it are sent.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            UnknownMemberIdError: the group has no such member, or there is no such group.
            GroupIdNotFoundError: all members were to go, and there is no such group.
            GroupAuthorizationError: this user may not read with the group.
            UnsupportedVersionError: the broker is older than Kafka 2.4.
            PartialFailureError: several members were refused; the others are removed.
            TypeError, ValueError: these are no names in a list, or the reason cannot be sent.
        """
        check_group(group_id)
        named = None if members is None else [_Identity("", each) for each in as_names(members, "members")]
        if reason is not None:
            check_text(reason, "a reason")
        text = f"{_REASON}: {reason}"[:_LONGEST_REASON] if reason else _REASON
        what = f"Removing members of group {shown(group_id)}"
        with self._steps(timeout, what) as left:
            if named is not None:
                failures = await self._remove(group_id, named, text, left(), what)
            else:
                failures = await self._remove_all(group_id, text, left, what)
        raise_failures(what, failures)

    async def _remove_all(
        self, group_id: str, reason: str, left: Callable[[], float], what: str
    ) -> dict[str, KafkaError]:
        description = await self._describe_group(group_id, left())
        identities = [_Identity.of(each.member_id, each.group_instance_id) for each in description.members]
        failures = await self._remove(group_id, identities, reason, left(), what)
        for name, error in list(failures.items()):
            if not isinstance(error, UnknownMemberIdError):
                continue
            if description.type == CLASSIC:  # who has left meanwhile is not there, as was asked for
                del failures[name]
            else:
                failures[name] = UnknownMemberIdError(
                    f"{error.message} (The group is of type {description.type}: not all brokers remove members of such"
                    " a group, as Kafka 4.3 does of consumer groups. Stop the member, or wait for its session to end.)"
                )
        return failures

    async def _remove(
        self, group_id: str, members: Iterable[_Identity], reason: str, timeout: float, what: str
    ) -> dict[str, KafkaError]:
        """Why members could not be removed, by name."""

        unanswered: set[_Identity] = set()

        async def ask(trial: Trial, left: Mapping[_Identity, None]) -> Mapping[_Identity, Outcome]:
            node = await self._cluster.find_coordinator(group_id, GROUP, trial=trial)
            connection = await self._cluster.connection(node.id, trial=trial)
            if version_for(connection, LeaveGroupRequest) < _FIRST_WITH_MEMBERS:
                raise UnsupportedVersionError(f"{connection.address} cannot remove members (Kafka 2.4 can)")
            request = LeaveGroupRequest(
                group_id=group_id,
                members=[
                    LeaveGroupRequestMember(member_id=each.member_id, group_instance_id=each.instance_id, reason=reason)
                    for each in left
                ],
            )
            before = set(unanswered)
            unanswered.update(left)
            response = await self._exchange(trial, connection, request, LeaveGroupResponse)
            unanswered.intersection_update(before)
            check_code(response.error_code, f"Group {shown(group_id)}")
            return {
                (member := _Identity.of(row.member_id, row.group_instance_id)): failure(
                    row.error_code, f"Member {shown(str(member))} of group {shown(group_id)}"
                )
                for row in response.members
            }

        failures = await self._each(dict.fromkeys(members), ask, timeout=timeout, what=what)
        for member in unanswered:
            error = failures.get(str(member))
            if isinstance(error, UnknownMemberIdError):
                failures[str(member)] = told_late(error)
        return failures
