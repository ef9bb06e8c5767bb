"""Each call of the admin client cancelled at its first checkpoint, its second, and so on: the client still works."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

import kclient
from kclient.admin import (
    AbortTransactionSpec,
    AclBinding,
    AclOperation,
    ClientQuotaEntity,
    ConfigResource,
    ConfigResourceType,
    ElectionType,
    FeatureUpdate,
    NewTopic,
    OffsetSpec,
    RaftVoterEndpoint,
    ResourceType,
    ScramMechanism,
    UpgradeType,
    UserScramCredentialDeletion,
)
from kclient.errors import KafkaError
from kclient.testing import memory_broker
from kclient.testing.cancellation import Cancelled, at_every_checkpoint
from kclient.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.anyio

T0 = TopicPartition("t", 0)
TOPIC = ConfigResource(ConfigResourceType.TOPIC, "t")

DOWNGRADE = FeatureUpdate(1, UpgradeType.SAFE_DOWNGRADE)
ACL = AclBinding(resource_type=ResourceType.TOPIC, resource_name="t", principal="User:a", operation=AclOperation.READ)
GONE = UserScramCredentialDeletion(user="a", mechanism=ScramMechanism.SCRAM_SHA_512)
QUOTA = ClientQuotaEntity(user="a")
DIRECTORY = "3Db5QLSqSZieL3rJBUUegA"
ENDPOINT = RaftVoterEndpoint("CONTROLLER", "localhost", 9093)
HMAC = "c2VjcmV0"
SPEC = AbortTransactionSpec(TopicPartition("old", 0), 7, 0, 0)


async def whatever_is_answered(call: Awaitable[Any]) -> None:
    """A gateway does not know all of these calls, and there is no such transaction; cancelled they can be."""
    with suppress(KafkaError):
        await call


CALLS: dict[str, Callable[[kclient.Admin], Awaitable[Any]]] = {
    "abort_transaction": lambda admin: whatever_is_answered(admin.abort_transaction(SPEC)),
    "alter_client_quotas": lambda admin: whatever_is_answered(admin.alter_client_quotas({QUOTA: {"x": 1}})),
    "alter_configs": lambda admin: admin.alter_configs({TOPIC: {"retention.ms": "1000000"}}),
    "alter_group_offsets": lambda admin: admin.alter_group_offsets("g", {T0: 2}),
    "alter_partition_reassignments": lambda admin: admin.alter_partition_reassignments({T0: [1]}),
    "add_raft_voter": lambda admin: whatever_is_answered(admin.add_raft_voter(1, DIRECTORY, [ENDPOINT])),
    "alter_replica_log_dirs": lambda admin: whatever_is_answered(admin.alter_replica_log_dirs({("t", 0, 1): "/d"})),
    "alter_share_group_offsets": lambda admin: whatever_is_answered(admin.alter_share_group_offsets("s", {T0: 1})),
    "alter_user_scram_credentials": lambda admin: whatever_is_answered(admin.alter_user_scram_credentials([GONE])),
    "client_instance_id": lambda admin: whatever_is_answered(admin.client_instance_id()),
    "create_acls": lambda admin: whatever_is_answered(admin.create_acls([ACL])),
    "create_delegation_token": lambda admin: whatever_is_answered(admin.create_delegation_token()),
    "create_partitions": lambda admin: admin.create_partitions({"t": 2}),
    "create_topic": lambda admin: admin.create_topic("new"),
    "create_topics": lambda admin: admin.create_topics([NewTopic("new"), NewTopic("newer")]),
    "delete_acls": lambda admin: whatever_is_answered(admin.delete_acls([ACL.as_filter()])),
    "delete_group_offsets": lambda admin: admin.delete_group_offsets("g", [T0]),
    "delete_groups": lambda admin: admin.delete_groups(["g"]),
    "delete_records": lambda admin: admin.delete_records({T0: 1}),
    "delete_share_group_offsets": lambda admin: whatever_is_answered(admin.delete_share_group_offsets("s", ["t"])),
    "delete_topic": lambda admin: admin.delete_topic("old"),
    "delete_topics": lambda admin: admin.delete_topics(["old", "older"]),
    "describe_acls": lambda admin: whatever_is_answered(admin.describe_acls()),
    "describe_client_quotas": lambda admin: whatever_is_answered(admin.describe_client_quotas()),
    "describe_cluster": lambda admin: admin.describe_cluster(),
    "describe_configs": lambda admin: admin.describe_configs([TOPIC]),
    "describe_delegation_tokens": lambda admin: whatever_is_answered(admin.describe_delegation_tokens()),
    "describe_features": lambda admin: admin.describe_features(),
    "describe_groups": lambda admin: admin.describe_groups(["g"]),
    "describe_log_dirs": lambda admin: admin.describe_log_dirs(),
    "describe_metadata_quorum": lambda admin: whatever_is_answered(admin.describe_metadata_quorum()),
    "describe_producers": lambda admin: whatever_is_answered(admin.describe_producers([T0])),
    "describe_replica_log_dirs": lambda admin: whatever_is_answered(admin.describe_replica_log_dirs([("t", 0, 1)])),
    "describe_topics": lambda admin: admin.describe_topics(["t"]),
    "describe_transactions": lambda admin: whatever_is_answered(admin.describe_transactions(["x"])),
    "describe_user_scram_credentials": lambda admin: whatever_is_answered(admin.describe_user_scram_credentials(["a"])),
    "elect_leaders": lambda admin: admin.elect_leaders(ElectionType.PREFERRED, [T0]),
    "expire_delegation_token": lambda admin: whatever_is_answered(admin.expire_delegation_token(HMAC)),
    "fence_producers": lambda admin: whatever_is_answered(admin.fence_producers(["x"])),
    "find_hanging_transactions": lambda admin: whatever_is_answered(admin.find_hanging_transactions([T0])),
    "force_terminate_transaction": lambda admin: whatever_is_answered(admin.force_terminate_transaction("x")),
    "group_lag": lambda admin: admin.group_lag("g"),
    "list_config_resources": lambda admin: whatever_is_answered(admin.list_config_resources()),
    "list_group_offsets": lambda admin: admin.list_group_offsets("g"),
    "list_groups": lambda admin: admin.list_groups(),
    "list_offsets": lambda admin: admin.list_offsets({T0: OffsetSpec.LATEST}),
    "list_partition_reassignments": lambda admin: admin.list_partition_reassignments(),
    "list_share_group_offsets": lambda admin: whatever_is_answered(admin.list_share_group_offsets("s")),
    "list_topics": lambda admin: admin.list_topics(),
    "list_transactions": lambda admin: whatever_is_answered(admin.list_transactions()),
    "remove_members_from_consumer_group": lambda admin: whatever_is_answered(
        admin.remove_members_from_consumer_group("g", ["one"])
    ),
    "remove_raft_voter": lambda admin: whatever_is_answered(admin.remove_raft_voter(1, DIRECTORY)),
    "renew_delegation_token": lambda admin: whatever_is_answered(admin.renew_delegation_token(HMAC)),
    "reset_group_offsets": lambda admin: admin.reset_group_offsets("g", OffsetSpec.EARLIEST),
    "unregister_broker": lambda admin: whatever_is_answered(admin.unregister_broker(7)),
    "update_features": lambda admin: admin.update_features({"transaction.version": DOWNGRADE}),
}


def test_every_call_is_here() -> None:
    public = {name for name, _ in inspect.getmembers(kclient.Admin, inspect.iscoroutinefunction) if name[0] != "_"}
    assert public == {*CALLS, "start", "close"}


async def prepare(admin: kclient.Admin, address: str) -> None:
    await admin.create_topics([NewTopic("t"), NewTopic("old"), NewTopic("older")])
    async with kclient.Producer(bootstrap_servers=address) as producer:
        await (await producer.send_batch("t", [b"0", b"1", b"2"]))
    await admin.alter_group_offsets("g", {T0: 1})


async def check(admin: kclient.Admin) -> None:
    """Everything can be asked and done, on the same connections and whatever the call has done."""
    names = {topic.name for topic in await admin.list_topics()}
    assert "t" in names
    await admin.create_topic("after")
    assert len((await admin.describe_topics(["t"]))["t"].partitions) in (1, 2)
    await admin.alter_group_offsets("g", {T0: 3})
    assert await admin.list_group_offsets("g") == {T0: OffsetAndMetadata(3)}
    end = (await admin.list_offsets({T0: OffsetSpec.LATEST}))[T0]
    assert end is not None
    assert end.offset == 3
    await admin.delete_topics(["t", "after"])
    assert not {"t", "after"} & {topic.name for topic in await admin.list_topics()}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CALLS))
async def test_a_cancelled_call(name: str) -> None:
    async def scenario(cancelled: Cancelled) -> None:
        with memory_broker() as address:
            async with kclient.Admin(bootstrap_servers=address) as preparing:
                await prepare(preparing, address)
                # whose first call has to connect too
                async with kclient.Admin(bootstrap_servers=address, enable_metrics_push=True) as admin:
                    await cancelled(CALLS[name](admin))
                    await check(admin)

    assert await at_every_checkpoint(scenario) >= 1


@pytest.mark.slow
async def test_a_cancelled_start() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async def use(admin: kclient.Admin) -> None:
            async with admin:
                await admin.create_topic("t")

        with memory_broker() as address:
            await cancelled(use(kclient.Admin(bootstrap_servers=address)))
            async with kclient.Admin(bootstrap_servers=address) as admin:
                assert {topic.name for topic in await admin.list_topics()} <= {"t"}

    assert await at_every_checkpoint(scenario) >= 1


async def test_a_cancelled_close() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        with memory_broker() as address:
            async with kclient.Admin(bootstrap_servers=address) as admin:
                await admin.list_topics()
                await cancelled(admin.close())
                await admin.close()
                with pytest.raises(kclient.errors.ClosedError):
                    await admin.list_topics()

    await at_every_checkpoint(scenario)
