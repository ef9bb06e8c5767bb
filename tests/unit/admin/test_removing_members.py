"""Removing members of groups: which answers of a coordinator are asked for again, and what is told of the others."""

from __future__ import annotations

from typing import Any

import pytest

from kclient.errors import ErrorCode, FencedInstanceIdError, UnknownMemberIdError, UnsupportedVersionError
from kclient.protocol.messages import (
    DescribedGroupMember,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    LeaveGroupResponse,
    LeaveGroupResponseMember,
)
from kclient.protocol.registry import ApiKey
from tests.fake_kafka import FakeKafka
from tests.unit.admin.scripted import VERSIONS, administering

pytestmark = pytest.mark.anyio

GROUPS = {**VERSIONS, ApiKey.FIND_COORDINATOR: (0, 2), ApiKey.LEAVE_GROUP: (0, 5), ApiKey.DESCRIBE_GROUPS: (0, 5)}


class LeavingGroup:
    """A coordinator that refuses whole requests with these codes, then some members, and lets the others go."""

    def __init__(self, kafka: FakeKafka, codes: list[int] | None = None, members: dict[str, int] | None = None) -> None:
        self.codes, self.members = codes or [], members or {}
        self.asked: list[list[tuple[str, str | None, str | None]]] = []
        self.lost = 0
        """How many of the next requests are carried out, but get no answer."""
        kafka.scripts[ApiKey.LEAVE_GROUP] = self._leave
        kafka.scripts[ApiKey.DESCRIBE_GROUPS] = self._describe

    def _leave(self, broker: Any, request: Any) -> LeaveGroupResponse | None:
        self.asked.append([(each.member_id, each.group_instance_id, each.reason) for each in request.members])
        if self.codes:
            return LeaveGroupResponse(error_code=self.codes.pop(0))
        rows = []
        for each in request.members:
            name = each.group_instance_id or each.member_id
            rows.append(
                LeaveGroupResponseMember(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    error_code=self.members.get(name, 0),
                )
            )
            self.members[name] = ErrorCode.UNKNOWN_MEMBER_ID
        if self.lost:
            self.lost -= 1
            broker.hang_up()
            return None
        return LeaveGroupResponse(members=rows)

    def _describe(self, broker: Any, request: Any) -> DescribeGroupsResponse:
        members = [
            DescribedGroupMember(member_id="m-1", group_instance_id="one", client_id="c", client_host="h"),
            DescribedGroupMember(member_id="m-2", group_instance_id=None, client_id="c", client_host="h"),
        ]
        group = DescribeGroupsResponseDescribedGroup(
            group_id="g", group_state="Stable", protocol_type="consumer", protocol_data="range", members=members
        )
        return DescribeGroupsResponse(groups=[group])


@pytest.mark.parametrize(
    "code",
    [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR],
    ids=lambda code: code.name,
)
async def test_a_coordinator_that_moves_is_asked_again(code: ErrorCode) -> None:
    async with FakeKafka(versions=GROUPS) as kafka, administering(kafka) as admin:
        group = LeavingGroup(kafka, codes=[code])
        await admin.remove_members_from_consumer_group("g", ["one", "one"], reason="gone")
        assert group.asked == [[("", "one", "removed by an admin client: gone")]] * 2


async def test_all_of_them_by_what_names_each() -> None:
    async with FakeKafka(versions=GROUPS) as kafka, administering(kafka) as admin:
        group = LeavingGroup(kafka, members={"m-2": ErrorCode.UNKNOWN_MEMBER_ID})
        await admin.remove_members_from_consumer_group("g")  # that the other has left meanwhile is fine
        assert group.asked == [[("", "one", "removed by an admin client"), ("m-2", None, "removed by an admin client")]]


async def test_one_that_is_refused_is_told() -> None:
    async with FakeKafka(versions=GROUPS) as kafka, administering(kafka) as admin:
        LeavingGroup(kafka, members={"one": ErrorCode.FENCED_INSTANCE_ID})
        with pytest.raises(FencedInstanceIdError, match="Member 'one' of group 'g'"):
            await admin.remove_members_from_consumer_group("g")


async def test_an_attempt_without_an_answer_may_have_removed_it() -> None:
    async with FakeKafka(versions=GROUPS) as kafka, administering(kafka) as admin:
        group = LeavingGroup(kafka)
        group.lost = 1
        with pytest.raises(UnknownMemberIdError, match="An earlier attempt that got no answer may have done it"):
            await admin.remove_members_from_consumer_group("g", ["one"])
        assert len(group.asked) == 2


async def test_a_long_reason_is_cut() -> None:
    async with FakeKafka(versions=GROUPS) as kafka, administering(kafka) as admin:
        group = LeavingGroup(kafka)
        await admin.remove_members_from_consumer_group("g", ["one"], reason="x" * 1000)
        assert len(group.asked[0][0][2] or "") == 255


async def test_brokers_that_cannot_remove_members() -> None:
    versions = {**GROUPS, ApiKey.LEAVE_GROUP: (0, 2)}
    async with FakeKafka(versions=versions) as kafka, administering(kafka) as admin:
        LeavingGroup(kafka)
        with pytest.raises(UnsupportedVersionError, match=r"cannot remove members \(Kafka 2\.4 can\)"):
            await admin.remove_members_from_consumer_group("g", ["one"])


async def test_what_cannot_be() -> None:
    async with FakeKafka(versions=GROUPS) as kafka, administering(kafka) as admin:
        with pytest.raises(TypeError, match="members are given in a list"):
            await admin.remove_members_from_consumer_group("g", "one")
        with pytest.raises(ValueError, match="members have names that are not empty"):
            await admin.remove_members_from_consumer_group("g", [""])
        with pytest.raises(TypeError, match="a reason is text"):
            await admin.remove_members_from_consumer_group("g", reason=7)  # type: ignore[arg-type]
