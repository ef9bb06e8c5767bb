"""Access control lists by the admin client and `kclient acls`, on real Kafka with an authorizer, and without."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import anyio
import anyio.to_thread
import pytest

import kclient
from kclient.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    Admin,
    ClientQuotaEntity,
    NewTopic,
    PartialFailureError,
    PatternType,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
)
from kclient.cli.app import run
from kclient.errors import (
    ClusterAuthorizationError,
    InvalidRequestError,
    KafkaError,
    SecurityDisabledError,
    TopicAuthorizationError,
)
from kclient.protocol.messages import AclCreation, CreateAclsRequest
from tests.conftest import require_java
from tests.guarded_servers import ALICE, Guarded, guarded_gateway, guarded_kafka
from tests.kafka_artifacts import KAFKA_3, KAFKA_4
from tests.kafka_server import JavaTools
from tests.wire_session import until, wire_session

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

TOOLS = {KAFKA_4: "org.apache.kafka.tools.AclCommand", KAFKA_3: "kafka.admin.AclCommand"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(KAFKA_4, marks=pytest.mark.kafka),
        pytest.param(KAFKA_3, marks=[pytest.mark.kafka, pytest.mark.slow]),
        "gateway",
    ],
)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    if request.param == "gateway":
        with guarded_gateway() as gateway:
            yield gateway
        return
    require_java()
    with guarded_kafka(request.param, tmp_path_factory.mktemp("guarded")) as server:
        yield server


@pytest.fixture
def topic() -> str:
    return f"acls-{uuid.uuid4().hex[:8]}"


async def may_write(server: Guarded, topic: str) -> bool:
    async with kclient.Producer(**server.as_alice(), retries=0) as producer:
        try:
            await (await producer.send(topic, b"x"))
        except TopicAuthorizationError:
            return False
    return True


def write(topic: str, **more: object) -> AclBinding:
    given: dict[str, object] = {"resource_type": ResourceType.TOPIC, "resource_name": topic, "principal": ALICE,
                                "operation": AclOperation.WRITE, **more}  # fmt: skip
    return AclBinding(**given)  # type: ignore[arg-type]


async def test_an_entry_acts(guarded: Guarded, topic: str) -> None:
    async with Admin(bootstrap_servers=guarded.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
        assert not await may_write(guarded, topic)
        allowed = write(topic[:9], pattern_type=PatternType.PREFIXED)
        await admin.create_acls([allowed, allowed])
        await until(lambda: may_write(guarded, topic), bool)
        denied = write(topic, host="127.0.0.1", permission_type=AclPermissionType.DENY)
        await admin.create_acls([denied])
        await until(lambda: may_write(guarded, topic), lambda found: not found)
        assert await admin.describe_acls(AclBindingFilter(resource_name=topic)) == [denied]
        match = AclBindingFilter(
            resource_type=ResourceType.TOPIC, resource_name=topic, pattern_type=PatternType.MATCH, principal=ALICE
        )
        assert await admin.describe_acls(match) == sorted([allowed, denied], key=lambda acl: acl.resource_name)
        assert await admin.delete_acls([denied.as_filter(), allowed.as_filter()]) == {
            denied.as_filter(): [denied],
            allowed.as_filter(): [allowed],
        }
        assert await until(lambda: admin.describe_acls(match), lambda found: not found) == []
        assert await admin.delete_acls([match]) == {match: []}


async def test_every_kind_of_entry_comes_back(guarded: Guarded, topic: str) -> None:
    kinds = {
        ResourceType.TOPIC: [AclOperation.ALL, AclOperation.ALTER_CONFIGS, AclOperation.CREATE, AclOperation.DELETE],
        ResourceType.GROUP: [AclOperation.READ, AclOperation.DESCRIBE],
        ResourceType.TRANSACTIONAL_ID: [AclOperation.WRITE],
        ResourceType.DELEGATION_TOKEN: [AclOperation.DESCRIBE],
        ResourceType.USER: [AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS],
    }
    given = [
        AclBinding(
            resource_type=kind, resource_name=topic, operation=operation, principal=principal, host=host,
            permission_type=permission, pattern_type=pattern,
        )
        for kind, operations in kinds.items()
        for operation in operations
        for principal in ("User:*", "User:CN=a,OU=b")
        for host in ("*", "10.0.0.1")
        for permission in AclPermissionType.known()
        for pattern in PatternType.known()
    ]  # fmt: skip
    cluster = AclBinding(
        resource_type=ResourceType.CLUSTER, resource_name="kafka-cluster", operation=AclOperation.CLUSTER_ACTION,
        principal=f"User:{topic}",
    )  # fmt: skip
    async with Admin(bootstrap_servers=guarded.bootstrap) as admin:
        await admin.create_acls([*given, cluster])
        wanted = AclBindingFilter(resource_name=topic)
        found = await until(lambda: admin.describe_acls(wanted), lambda found: len(found) == len(given))
        assert set(found) == set(given)
        assert len(await admin.describe_acls(AclBindingFilter(resource_name=topic, host="10.0.0.1"))) == len(given) // 2
        of_cluster = AclBindingFilter(resource_type=ResourceType.CLUSTER, principal=f"User:{topic}")
        assert await admin.describe_acls(of_cluster) == [cluster]
        assert set(await admin.describe_acls()) >= {*given, cluster}
        gone = await admin.delete_acls([wanted, of_cluster])
        assert set(gone[wanted]) == set(given)
        assert gone[of_cluster] == [cluster]


async def test_those_that_are_refused_do_not_keep_the_others(guarded: Guarded, topic: str) -> None:
    wrong = [
        AclBinding(
            resource_type=ResourceType.CLUSTER, resource_name="other", operation=AclOperation.ALTER, principal=ALICE,
            host=host,
        )
        for host in ("*", "10.0.0.1")
    ]  # fmt: skip
    async with Admin(bootstrap_servers=guarded.bootstrap) as admin:
        with pytest.raises(InvalidRequestError, match="ACL ALLOW User:alice ALTER CLUSTER other"):
            await admin.create_acls([wrong[0], write(topic)])
        await until(
            lambda: admin.describe_acls(AclBindingFilter(resource_name=topic)), lambda found: found == [write(topic)]
        )
        with pytest.raises(PartialFailureError) as failed:
            await admin.create_acls(wrong)
        assert set(failed.value.failures) == {
            "ACL ALLOW User:alice ALTER CLUSTER other",
            "ACL ALLOW User:alice from 10.0.0.1 ALTER CLUSTER other",
        }
        await admin.delete_acls([AclBindingFilter(resource_name=topic)])


async def test_who_may_not_is_told(guarded: Guarded, topic: str) -> None:
    async with Admin(**guarded.as_alice()) as admin:
        for call in (
            lambda: admin.describe_acls(),
            lambda: admin.create_acls([write(topic)]),
            lambda: admin.delete_acls([AclBindingFilter(resource_name=topic)]),
        ):
            with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
                await call()


@pytest.mark.slow
@pytest.mark.foreign
async def test_the_command_does_what_kafkas_own_does(
    guarded: Guarded, topic: str, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Kafka's for one name, ours for another: the same entries but for the name."""
    tools = JavaTools(guarded.version, tmp_path_factory.mktemp("tools"))
    names = {"java": f"{topic}-java", "ours": f"{topic}-ours"}

    def ours(*arguments: str) -> str:
        assert run(["acls", *arguments, "--bootstrap", guarded.bootstrap]) == 0
        return capsys.readouterr().out

    def java(*arguments: str) -> str:
        return tools.run(TOOLS[guarded.version], "--bootstrap-server", guarded.bootstrap, *arguments)

    async with Admin(bootstrap_servers=guarded.bootstrap) as admin:

        async def entries(name: str) -> set[AclBinding]:
            found = await admin.describe_acls(AclBindingFilter(resource_name=names[name]))
            return {AclBinding(**{**_fields(acl), "resource_name": topic}) for acl in found}

        async def both() -> list[set[AclBinding]]:
            return [await entries("java"), await entries("ours")]

        async def same(count: int) -> None:
            await until(both, lambda found: found[0] == found[1] and len(found[0]) == count)

        name = names["java"]
        await anyio.to_thread.run_sync(
            java, "--add", "--allow-principal", ALICE, "--producer", "--consumer", "--topic", name, "--group", name,
            "--transactional-id", name, "--resource-pattern-type", "prefixed",
        )  # fmt: skip
        name = names["ours"]
        await anyio.to_thread.run_sync(
            ours, "add", "--allow", ALICE, "--producer", "--consumer", "--topic", name, "--group", name,
            "--transactional-id", name, "--prefixed",
        )  # fmt: skip
        await same(7)
        name = names["java"]
        await anyio.to_thread.run_sync(
            java, "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "DescribeConfigs",
            "--operation", "All", "--topic", name,
        )  # fmt: skip
        name = names["ours"]
        await anyio.to_thread.run_sync(
            ours, "add", "--deny", "User:bob", "--host", "10.0.0.1", "--operation", "describe-configs", "--operation",
            "ALL", "--topic", name,
        )  # fmt: skip
        await same(9)
        printed = json.loads(await anyio.to_thread.run_sync(ours, "list", "--topic", name, "--output", "json"))
        assert len(printed["acls"]) == 6
        assert printed["acls"][0] == {
            "resource": "topic", "name": name, "pattern": "literal", "principal": "User:bob", "host": "10.0.0.1",
            "operation": "all", "permission": "deny",
        }  # fmt: skip
        dry = await anyio.to_thread.run_sync(ours, "remove", "--topic", name, "--pattern", "any", "--dry-run")
        assert await anyio.to_thread.run_sync(ours, "remove", "--topic", name, "--pattern", "any") == dry
        assert len(await until(lambda: entries("ours"), lambda found: len(found) == 3)) == 3
        listed = await anyio.to_thread.run_sync(java, "--list", "--topic", names["java"])
        assert "(principal=User:bob, host=10.0.0.1, operation=DESCRIBE_CONFIGS, permissionType=DENY)" in listed
        await anyio.to_thread.run_sync(
            java, "--remove", "--force", "--topic", names["java"], "--resource-pattern-type", "any"
        )
        assert await until(lambda: entries("java"), lambda found: len(found) == 3) == await entries("ours")
        await admin.delete_acls([AclBindingFilter(resource_name=each) for each in names.values()])


async def test_all_are_removed(guarded: Guarded, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of prefixes, too; and not where something else was meant."""

    async def acls(*arguments: str) -> int:
        return await anyio.to_thread.run_sync(run, ["acls", *arguments, "--bootstrap", guarded.bootstrap])

    assert await acls("add", "--allow", ALICE, "--operation", "read", "--topic", topic) == 0
    assert await acls("add", "--allow", ALICE, "--operation", "read", "--topic", topic, "--prefixed") == 0
    async with Admin(bootstrap_servers=guarded.bootstrap) as admin:
        await until(lambda: admin.describe_acls(AclBindingFilter(resource_name=topic)), lambda found: len(found) == 2)
        capsys.readouterr()
        assert await acls("remove", "--all", "--topic", f"{topic}-other") == 2
        assert "--all and what says which ACLs exclude each other" in capsys.readouterr().err
        assert await acls("remove", "--pattern", "any") == 2
        assert await acls("remove", "--all", "--dry-run") == 0
        assert len(await admin.describe_acls(AclBindingFilter(resource_name=topic))) == 2
        assert await acls("remove", "--all") == 0
        await until(lambda: admin.describe_acls(), lambda found: not found)


async def test_who_has_no_rights_is_told_at_once(guarded: Guarded) -> None:
    """By every call about rights, whatever it asks for, in a sentence for people."""
    quota, gone = (
        ClientQuotaEntity(user="a"),
        UserScramCredentialDeletion(user="a", mechanism=ScramMechanism.SCRAM_SHA_256),
    )
    acl = AclBinding(resource_type=ResourceType.TOPIC, resource_name="t", principal=ALICE, operation=AclOperation.READ)
    async with Admin(guarded.as_alice()) as admin:
        await admin.describe_cluster()
        change_quota = partial(admin.alter_client_quotas, {quota: {"producer_byte_rate": 1}})
        for call in (
            admin.describe_acls,
            partial(admin.create_acls, [acl]),
            partial(admin.delete_acls, [AclBindingFilter()]),
            admin.describe_user_scram_credentials,
            partial(admin.describe_user_scram_credentials, ["a"]),
            partial(admin.alter_user_scram_credentials, [gone]),
            admin.describe_client_quotas,
            change_quota,
        ):
            with anyio.fail_after(5), pytest.raises(ClusterAuthorizationError) as told:
                await call()
            assert len(str(told.value)) < 200


def _fields(acl: AclBinding) -> dict[str, object]:
    return {name: getattr(acl, name) for name in AclBinding.__slots__}


async def test_what_alice_may_do_is_told(guarded: Guarded, topic: str) -> None:
    """Of what she may not describe she hears nothing, and of the rest what her entries allow (KIP-430)."""
    async with Admin(bootstrap_servers=guarded.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
        acl = AclBinding(
            resource_type=ResourceType.TOPIC, resource_name=topic, principal=ALICE, operation=AclOperation.WRITE
        )
        await admin.create_acls([acl])
        async with Admin(**guarded.as_alice()) as alice:

            async def told() -> frozenset[AclOperation] | None:
                with suppress(KafkaError):  # until the broker acts by the new entry
                    described = await alice.describe_topics([topic], include_authorized_operations=True)
                    return described[topic].authorized_operations
                return None

            found = await until(told, lambda answer: answer is not None)
            assert found == frozenset({AclOperation.WRITE, AclOperation.DESCRIBE})
            cluster = await alice.describe_cluster(include_authorized_operations=True)
            assert cluster.authorized_operations == frozenset()
        await admin.delete_acls([acl.as_filter()])


async def test_an_entry_that_another_client_has_made_without_a_host(guarded: Guarded, topic: str) -> None:
    """Kafka takes it, though it lets nobody in; it hid all others, and was removed with an error."""
    async with wire_session(guarded.bootstrap) as session:
        made = await session(
            CreateAclsRequest(
                creations=[
                    AclCreation(
                        resource_type=2, resource_name=topic, resource_pattern_type=3, principal=ALICE, host="",
                        operation=3, permission_type=3,
                    )
                ]
            )
        )  # fmt: skip
    assert [row.error_code for row in made.results] == [0]
    async with Admin(bootstrap_servers=guarded.bootstrap) as admin:
        await admin.create_acls([write(topic)])
        found = await until(admin.describe_acls, lambda acls: len([a for a in acls if a.resource_name == topic]) == 2)
        assert [acl.host for acl in found if acl.resource_name == topic] == ["", "*"]
        ours = AclBindingFilter(resource_name=topic)
        removed = (await admin.delete_acls([ours]))[ours]
        assert sorted(acl.host for acl in removed) == ["", "*"]


async def test_brokers_without_an_authorizer_say_so(broker: str, topic: str) -> None:
    async with Admin(bootstrap_servers=broker) as admin:
        for call in (
            lambda: admin.describe_acls(),
            lambda: admin.create_acls([write(topic)]),
            lambda: admin.delete_acls([AclBindingFilter()]),
        ):
            with pytest.raises(SecurityDisabledError):
                await call()
