"""An attempt that nobody answers may have done what the next one finds done: the error says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio
import pytest

import kclient
from kclient.admin import RaftVoterEndpoint, ScramMechanism, UserScramCredentialDeletion
from kclient.errors import ErrorCode, KafkaError, ResourceNotFoundError
from kclient.protocol.messages import (
    AddRaftVoterResponse,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    DeletableGroupResult,
    DeleteGroupsResponse,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    RemoveRaftVoterResponse,
    UnregisterBrokerResponse,
)
from kclient.protocol.registry import ApiKey
from tests.fake_kafka import FakeBroker, FakeKafka
from tests.unit.admin.scripted import KRAFT, VERSIONS, administering

pytestmark = pytest.mark.anyio


async def test_a_credential_that_an_unanswered_attempt_may_have_deleted() -> None:
    asked: list[int] = []

    async def answer(broker: FakeBroker, request: Any) -> Any:
        asked.append(broker.node_id)
        if len(asked) == 1:
            broker.pause()
            await anyio.sleep_forever()
        code = ErrorCode.RESOURCE_NOT_FOUND
        (row,) = request.deletions
        result = AlterUserScramCredentialsResult(user=row.name, error_code=code, error_message="gone")
        return AlterUserScramCredentialsResponse(results=[result])

    versions = {**VERSIONS, **KRAFT, ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0)}
    async with FakeKafka(brokers=3, versions=versions) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.ALTER_USER_SCRAM_CREDENTIALS] = answer
        gone = UserScramCredentialDeletion(user="a", mechanism=ScramMechanism.SCRAM_SHA_256)
        with pytest.raises(ResourceNotFoundError, match="earlier attempt that got no answer may have done it"):
            await admin.alter_user_scram_credentials([gone], timeout=3)
        assert len(asked) == 2


class Repeated(NamedTuple):
    """A call, and what the cluster answers that has done it already."""

    call: Callable[[kclient.Admin], Awaitable[object]]
    key: ApiKey
    answer: Any
    code: ErrorCode


DIRECTORY = "3Db5QLSqSZieL3rJBUUegA"
ENDPOINT = RaftVoterEndpoint("CONTROLLER", "localhost", 9093)
DUPLICATE, NO_VOTER = ErrorCode.DUPLICATE_VOTER, ErrorCode.VOTER_NOT_FOUND
NO_BROKER, NO_GROUP = ErrorCode.BROKER_ID_NOT_REGISTERED, ErrorCode.GROUP_ID_NOT_FOUND
NO_OFFSETS = DeleteShareGroupOffsetsResponseTopic(topic_name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
REPEATED = {
    "add_raft_voter": Repeated(
        lambda admin: admin.add_raft_voter(5, DIRECTORY, [ENDPOINT], timeout=3),
        ApiKey.ADD_RAFT_VOTER, AddRaftVoterResponse(error_code=DUPLICATE), DUPLICATE,
    ),
    "remove_raft_voter": Repeated(
        lambda admin: admin.remove_raft_voter(5, DIRECTORY, timeout=3),
        ApiKey.REMOVE_RAFT_VOTER, RemoveRaftVoterResponse(error_code=NO_VOTER), NO_VOTER,
    ),
    "unregister_broker": Repeated(
        lambda admin: admin.unregister_broker(5, timeout=3),
        ApiKey.UNREGISTER_BROKER, UnregisterBrokerResponse(error_code=NO_BROKER), NO_BROKER,
    ),
    "delete_groups": Repeated(
        lambda admin: admin.delete_groups(["g"], timeout=3),
        ApiKey.DELETE_GROUPS,
        DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=NO_GROUP)]), NO_GROUP,
    ),
    "delete_share_group_offsets": Repeated(
        lambda admin: admin.delete_share_group_offsets("g", ["t"], timeout=3),
        ApiKey.DELETE_SHARE_GROUP_OFFSETS, DeleteShareGroupOffsetsResponse(responses=[NO_OFFSETS]),
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ),
}  # fmt: skip


@pytest.mark.parametrize("unanswered", [True, False])
@pytest.mark.parametrize("name", REPEATED)
async def test_what_is_done_already(name: str, unanswered: bool) -> None:
    call, key, answer, code = REPEATED[name]
    asked: list[int] = []

    async def script(broker: FakeBroker, _request: Any) -> Any:
        asked.append(broker.node_id)
        if len(asked) == 1 and unanswered:
            broker.hang_up()
            await anyio.sleep_forever()
        return answer

    versions = {**VERSIONS, **KRAFT, key: type(answer).VERSIONS}
    async with FakeKafka(brokers=3, versions=versions) as kafka, administering(kafka) as admin:
        kafka.scripts[key] = script
        with pytest.raises(KafkaError) as caught:
            await call(admin)
        assert caught.value.code == code
        assert len(asked) == (2 if unanswered else 1)
        assert ("earlier attempt that got no answer may have done it" in str(caught.value)) is unanswered
