"""A gateway with access control lists: who may change them, what they do to clients, and what the log tells."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from kclient.admin import AclBinding, AclBindingFilter, Admin
from kclient.errors import ConfigError, ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.acl_entries import AclEntry
from kclient.gateway.contexts import Principal
from kclient.gateway.rows.acls import acl_key, decode_acl, encode_acl
from kclient.gateway.rows.inspection import shown_row
from kclient.htp import open_store
from kclient.protocol import messages as m
from tests.gateway_wire import Wire, batch_of, connect, fetch_request, names, running
from tests.unit.gateway_cluster.together import joined
from tests.wire_session import until

pytestmark = pytest.mark.anyio

O, R = AclOperation, ResourceType  # noqa: E741
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
GUARDED = {"authorizer.class.name": STANDARD, "super.users": "User:root; User:CN=a,OU=b"}


def as_user(gateway: Gateway, name: str) -> Wire:
    """A connection whose client has logged in."""
    connections = gateway._server.connections  # type: ignore[union-attr]
    before = set(connections)
    wire = connect(gateway)
    (connection,) = set(connections) - before
    connection.context.principal = Principal(name)
    return wire


@asynccontextmanager
async def users(gateway: Gateway, *names: str) -> AsyncIterator[Sequence[Wire]]:
    wires = [as_user(gateway, name) for name in names]
    try:
        with anyio.fail_after(30):
            yield wires
    finally:
        for wire in wires:
            await wire.aclose()


def entry(
    name: str, operation: AclOperation, who: str = "User:alice", *, kind: ResourceType = R.TOPIC,
    pattern: PatternType = LITERAL, permission: AclPermissionType = ALLOW, host: str = "*",
) -> AclEntry:  # fmt: skip
    return AclEntry(kind, pattern, name, who, host, operation, permission)


def creation(acl: AclEntry) -> m.AclCreation:
    return m.AclCreation(
        resource_type=acl.kind, resource_name=acl.name, resource_pattern_type=acl.pattern, principal=acl.principal,
        host=acl.host, operation=acl.operation, permission_type=acl.permission,
    )  # fmt: skip


async def create(wire: Wire, *acls: AclEntry) -> list[tuple[int, str | None]]:
    answer = await wire(m.CreateAclsRequest(creations=[creation(each) for each in acls]), 3)
    return [(row.error_code, row.error_message) for row in answer.results]


def wanted(kind: type[Any], acl: AclEntry | None = None, **fields: Any) -> Any:
    found: dict[str, Any] = {
        "resource_type_filter": acl.kind if acl else 1,
        "resource_name_filter": acl.name if acl else None,
        "pattern_type_filter": acl.pattern if acl else 1,
        "principal_filter": acl.principal if acl else None,
        "host_filter": acl.host if acl else None,
        "operation": acl.operation if acl else 1,
        "permission_type": acl.permission if acl else 1,
    }
    return kind(**{**found, **fields})


async def describe(wire: Wire, **fields: Any) -> set[AclEntry]:
    answer = await wire(wanted(m.DescribeAclsRequest, **fields), 3)
    assert (answer.error_code, answer.error_message) == (0, None)
    found = [
        AclEntry(
            R(resource.resource_type), PatternType(resource.pattern_type), resource.resource_name, acl.principal,
            acl.host, O(acl.operation), AclPermissionType(acl.permission_type),
        )
        for resource in answer.resources
        for acl in resource.acls
    ]  # fmt: skip
    assert len(found) == len(set(found))
    return set(found)


async def delete(wire: Wire, *filters: Any) -> Any:
    return (await wire(m.DeleteAclsRequest(filters=list(filters)), 3)).filter_results


async def may_write(wire: Wire, topic: str) -> bool:
    code = (await wire.produce(topic, batch_of(b"a"))).error_code
    assert code in (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return not code


# --- settings


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}, "gateways load no classes"),
        ({"super.users": "User:root"}, "authorizer.class.name is not"),
        ({"allow.everyone.if.no.acl.found": True}, "authorizer.class.name is not"),
        ({"authorizer.class.name": "acls", "super.users": "root"}, "principals with semicolons"),
        ({"authorizer.class.name": "acls", "super.users": "User:a;:b"}, "principals with semicolons"),
    ],
)
def test_settings_that_make_no_sense(config: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Gateway("memory:x", config=config)


async def test_superusers_are_those_of_the_setting() -> None:
    async with (
        running(config={"authorizer.class.name": "acls", "super.users": " User:root ;; User:CN=a,OU=b;"}) as (
            gateway,
            anonymous,
        ),
        users(gateway, "root", "CN=a,OU=b", "CN=a", "User:root") as wires,
    ):
        for wire, may in zip([*wires, anonymous], [True, True, False, False, False], strict=True):
            code = (await wire(wanted(m.DescribeAclsRequest), 3)).error_code
            assert code == (0 if may else ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


@pytest.mark.parametrize(
    ("config", "acl", "locked"),
    [
        ({}, None, True),
        ({"super.users": "User:root"}, None, False),
        ({"allow.everyone.if.no.acl.found": True}, None, False),
        ({"allow.everyone.if.no.acl.found": True}, entry("kafka-cluster", O.DESCRIBE, kind=R.CLUSTER), True),
        ({}, entry("kafka-cluster", O.DESCRIBE, kind=R.CLUSTER), True),
        ({}, entry("kafka-cluster", O.ALL, kind=R.CLUSTER), False),
        ({}, entry("*", O.ALTER, kind=R.CLUSTER), False),
        ({}, entry("kafka-cluster", O.ALTER, kind=R.CLUSTER, permission=DENY), True),
        ({}, entry("t", O.ALTER), True),
    ],
)
async def test_who_starts_a_gateway_that_nobody_could_open_is_told(
    caplog: pytest.LogCaptureFixture, config: dict[str, Any], acl: AclEntry | None, locked: bool
) -> None:
    async with open_store(f"memory:{next(names)}") as store:
        if acl is not None:
            await store.manager.commit({acl_key(acl): encode_acl(acl)})
        async with running(store, config={"authorizer.class.name": "acls", **config}):
            assert ("start the gateway with super.users=User:NAME" in caplog.text) is locked


async def test_everybody_is_allowed_what_no_entry_is_about() -> None:
    async with (
        running(config={**GUARDED, "allow.everyone.if.no.acl.found": True}) as (gateway, anonymous),
        users(gateway, "root", "alice") as (root, alice),
    ):
        await anonymous.create("t")
        assert await may_write(alice, "t")
        assert await create(root, entry("t", O.READ, "User:bob")) == [(0, "")]
        assert not await may_write(alice, "t"), "an entry about anybody is one"
        assert not await may_write(anonymous, "t")
        assert await anonymous.producer_id() >= 0


async def test_without_an_authorizer_there_are_no_lists() -> None:
    async with running() as (_, wire):
        answer = await wire(wanted(m.DescribeAclsRequest), 3)
        assert answer.error_code == ErrorCode.SECURITY_DISABLED
        assert answer.error_message == "No Authorizer is configured on the broker"
        refused = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
        assert await create(wire, entry("t", O.READ), entry("u", O.READ)) == [refused] * 2
        (row,) = await delete(wire, wanted(m.DeleteAclsFilter))
        assert (row.error_code, row.error_message) == refused


# --- entries are made, found and removed


async def test_entries_that_are_none_are_refused_and_the_others_made() -> None:
    async with running(config=GUARDED) as (gateway, _), users(gateway, "root") as (root,):
        good = entry("t", O.READ)
        strange = [
            entry("*", O.ALL, pattern=PREFIXED),
            entry("t", O.READ, "User:"),
            entry("t", O.READ, ":alice"),
            entry("t", O.READ, host=""),
            entry("t", O.READ, host="example.org"),
            entry("g", O.IDEMPOTENT_WRITE, kind=R.GROUP),
            entry("a\nb", O.READ, "User:c\rd"),
            entry("User:alice", O.CREATE_TOKENS, kind=R.USER),
            entry("t", O.DESCRIBE, kind=R.DELEGATION_TOKEN),
            entry("kafka-cluster", O.ALTER, kind=R.CLUSTER, pattern=PREFIXED),
        ]
        refused = {
            entry("other", O.ALTER, kind=R.CLUSTER): "kafka-cluster",
            entry("", O.READ): "empty",
            entry("", O.READ, pattern=PREFIXED): "empty",
            entry("t", O.READ, pattern=PatternType.MATCH): "patternType MATCH",
            entry("t", O.READ, pattern=PatternType.ANY): "patternType ANY",
            entry("t", O.ANY): "operation ANY",
            entry("t", O.READ, kind=R.ANY): "resourceType ANY",
            entry("t", O.READ, permission=AclPermissionType.ANY): "permissionType ANY",
            entry("t", O.READ, "alice"): "as User:alice",
        }
        asked = [good, *refused, good, *strange]
        for _ in range(2):  # those that are there already are no error
            answers = dict(zip(asked, await create(root, *asked), strict=True))
            for acl, (code, text) in answers.items():
                if acl in refused:
                    assert code == ErrorCode.INVALID_REQUEST
                    assert refused[acl] in str(text)
                else:
                    assert (code, text) == (0, ""), acl
            assert await describe(root) == {good, *strange}
        unknown = creation(good)
        unknown.operation = 99
        (row,) = (await root(m.CreateAclsRequest(creations=[unknown]), 3)).results
        assert row.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
async def test_what_is_unknown_ends_the_connection(field: str) -> None:
    """As with Kafka, which takes such a request for none."""
    async with running(config=GUARDED) as (gateway, _):
        made = creation(entry("t", O.READ))
        setattr(made, field, 0)
        field = {"resource_type": "resource_type_filter", "resource_pattern_type": "pattern_type_filter"}.get(
            field, field
        )
        requests = [
            m.CreateAclsRequest(creations=[made]),
            m.DeleteAclsRequest(filters=[wanted(m.DeleteAclsFilter, **{field: 0})]),
            wanted(m.DescribeAclsRequest, **{field: 0}),
        ]
        for request in requests:
            async with users(gateway, "root") as (root,):
                await root.send(request, 3)
                assert await root.frame() is None


async def test_filters_find_and_remove() -> None:
    async with running(config=GUARDED) as (gateway, _), users(gateway, "root") as (root,):
        everything = {
            entry("topic", O.READ),
            entry("topic", O.WRITE, permission=DENY, host="10.0.0.1"),
            entry("to", O.READ, pattern=PREFIXED),
            entry("*", O.ALL, "User:*"),
            entry("topic", O.READ, kind=R.GROUP),
        }
        assert {code for code, _ in await create(root, *everything)} == {0}
        assert await describe(root) == everything
        applies = await describe(root, resource_type_filter=2, resource_name_filter="topic", pattern_type_filter=2)
        assert applies == {each for each in everything if each.kind is R.TOPIC}
        assert await describe(root, resource_name_filter="to") == {entry("to", O.READ, pattern=PREFIXED)}
        assert await describe(root, operation=99) == set()
        assert await describe(root, host_filter="10.0.0.1") == {
            entry("topic", O.WRITE, permission=DENY, host="10.0.0.1")
        }
        of_topics, unknown, same, none = await delete(
            root,
            wanted(m.DeleteAclsFilter, resource_name_filter="topic"),
            wanted(m.DeleteAclsFilter, resource_type_filter=99),
            wanted(m.DeleteAclsFilter, entry("topic", O.READ)),
            wanted(m.DeleteAclsFilter, resource_name_filter="nothing"),
        )
        assert len(of_topics.matching_acls) == 3
        assert (unknown.error_code, unknown.error_message) == (ErrorCode.INVALID_REQUEST, "Unknown patternFilter.")
        assert not unknown.matching_acls
        assert [(row.resource_name, row.operation, row.error_code) for row in same.matching_acls] == [("topic", 3, 0)]
        assert (none.error_code, none.matching_acls) == (0, [])
        assert await describe(root) == {each for each in everything if each.name != "topic"}
        (row,) = await delete(root, wanted(m.DeleteAclsFilter, permission_type=77))
        assert (row.error_code, row.error_message) == (ErrorCode.INVALID_REQUEST, "Unknown entryFilter.")


async def test_who_may_not_changes_nothing_and_learns_nothing() -> None:
    async with running(config=GUARDED) as (gateway, _), users(gateway, "root", "alice") as (root, alice):
        kept = entry("t", O.READ)
        await create(root, kept)
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for rights in ([], [O.DESCRIBE], [O.ALTER]):
            cluster = [entry("kafka-cluster", each, kind=R.CLUSTER) for each in rights]
            await create(root, *cluster)
            answer = await alice(wanted(m.DescribeAclsRequest), 3)
            assert answer.error_code == (0 if rights else refused), "ALTER implies DESCRIBE"
            assert len(answer.resources) == (2 if rights else 0)
            if O.ALTER not in rights:
                assert [code for code, _ in await create(alice, entry("mine", O.ALL))] == [refused]
                (row,) = await delete(alice, wanted(m.DeleteAclsFilter))
                assert (row.error_code, row.matching_acls) == (refused, [])
                assert await describe(root) == {kept, *cluster}
            else:
                assert await create(alice, entry("mine", O.ALL)) == [(0, "")]
            await delete(root, *(wanted(m.DeleteAclsFilter, each) for each in cluster))


# --- what they do


async def test_entries_act_at_once() -> None:
    async with running(config=GUARDED) as (gateway, anonymous), users(gateway, "root", "alice") as (root, alice):
        await root.create("topic-1")
        assert not await may_write(alice, "topic-1")
        allowed = entry("topic-", O.WRITE, pattern=PREFIXED)
        denied = entry("topic-1", O.ALL, "User:*", permission=DENY, host="127.0.0.1")
        await create(root, allowed)
        assert await may_write(alice, "topic-1")
        assert not await may_write(anonymous, "topic-1")
        await create(root, denied)
        assert not await may_write(alice, "topic-1"), "what denies counts more"
        await delete(root, wanted(m.DeleteAclsFilter, denied))
        assert await may_write(alice, "topic-1")
        (row,) = (await alice.metadata("topic-1")).topics
        assert row.error_code == 0, "WRITE implies DESCRIBE"
        assert (await alice.fetch("topic-1", 0)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await delete(root, wanted(m.DeleteAclsFilter, allowed))
        assert not await may_write(alice, "topic-1")
        (row,) = (await alice.metadata("topic-1")).topics
        assert row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_hosts_count() -> None:
    async with running(config=GUARDED) as (gateway, _), users(gateway, "root", "alice") as (root, alice):
        await root.create("t")
        await create(root, entry("t", O.WRITE, host="10.9.9.9"))
        assert not await may_write(alice, "t")
        await create(root, entry("t", O.WRITE, host="127.0.0.1"))
        assert await may_write(alice, "t"), "who comes in within the process is on this machine"


async def test_a_right_that_is_taken_away_while_a_client_reads() -> None:
    """The next fetch of the session is refused the topic, and a member of the group its heartbeat."""
    async with running(config=GUARDED) as (gateway, _), users(gateway, "root", "alice") as (root, alice):
        await root.create("t")
        await root.produce("t", batch_of(b"a"))
        read = [entry("t", O.READ), entry("g", O.READ, kind=R.GROUP)]
        await create(root, *read)
        request = fetch_request("t", 0)
        request.session_epoch = 0
        first = await alice(request, 12)
        assert first.responses[0].partitions[0].records
        join = m.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=0, rebalance_timeout_ms=1000, subscribed_topic_names=["t"],
            topic_partitions=[],
        )  # fmt: skip
        assert (await alice(join, 1)).error_code == 0
        again = m.FetchRequest(
            session_id=first.session_id, session_epoch=1, max_wait_ms=60_000, min_bytes=1, max_bytes=10**6
        )
        await root.fetch("t", 0)
        other = as_user(gateway, "alice")
        await delete(root, *(wanted(m.DeleteAclsFilter, each) for each in read))
        answer = await other(again, 12)
        (row,) = answer.responses[0].partitions
        assert row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not row.records
        beat = m.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1)
        assert (await alice(beat, 1)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        await other.aclose()


async def test_members_by_a_pattern_follow_their_rights() -> None:
    """What has come to be allowed is read from the next heartbeat on, and what was taken away no more."""
    async with running(config=GUARDED) as (gateway, _), users(gateway, "root", "alice") as (root, alice):
        ids = {name: (await root.create(name)).topic_id for name in ("t1", "t2")}
        await create(root, entry("t1", O.READ), entry("g", O.READ, kind=R.GROUP))
        epoch, given = 0, set[bytes]()

        async def beat() -> set[bytes]:
            nonlocal epoch, given
            request = m.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch)
            request.topic_partitions = []
            if given:
                request.topic_partitions = [
                    m.ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=each, partitions=[0]) for each in given
                ]
            if epoch == 0:
                request.rebalance_timeout_ms, request.subscribed_topic_regex = 1000, "t.*"
            answer = await alice(request, 1)
            assert not answer.error_code
            epoch = answer.member_epoch
            if answer.assignment is not None:
                given = {row.topic_id for row in answer.assignment.topic_partitions}
            return given

        await until(beat, lambda found: found == {ids["t1"]})
        await create(root, entry("t2", O.DESCRIBE))
        await until(beat, lambda found: found == set(ids.values()))
        await delete(root, wanted(m.DeleteAclsFilter, entry("t1", O.READ)))
        await until(beat, lambda found: found == {ids["t2"]})


async def test_a_fetch_that_waits_tells_nothing_after_the_right_has_gone() -> None:
    async with running(config=GUARDED) as (gateway, _), users(gateway, "root", "alice") as (root, alice):
        await root.create("t")
        read = entry("t", O.READ)
        await create(root, read)
        request = fetch_request("t", 0, max_wait_ms=20_000, min_bytes=1)
        await alice.send(request, 12)
        await until_parked(gateway)
        await delete(root, wanted(m.DeleteAclsFilter, read))
        await root.produce("t", batch_of(b"secret"))
        (row,) = (await alice.read(request, 12)).responses[0].partitions
        assert not row.records


async def until_parked(gateway: Gateway) -> None:
    async def parked() -> bool:
        partition = gateway.parts.partitions.get("t", 0)
        return partition is not None and len(partition.waiters) > 0

    await until(parked, bool)


async def test_the_admin_client() -> None:
    binding = AclBinding(resource_type=R.TOPIC, resource_name="t", principal="User:alice", operation=O.READ)
    config = {**GUARDED, "super.users": "User:ANONYMOUS"}
    async with (
        Gateway(f"memory:{next(names)}", listen="127.0.0.1:0", config=config) as gateway,
        Admin(bootstrap_servers=gateway.bootstrap) as admin,
    ):
        await admin.create_acls([binding])
        assert await admin.describe_acls() == [binding]
        assert await admin.delete_acls([AclBindingFilter()]) == {AclBindingFilter(): [binding]}
        assert await admin.describe_acls() == []


# --- what the store has of them


@pytest.mark.slow
async def test_they_outlive_a_restart(tmp_path: Path) -> None:
    acls = {entry("t", O.WRITE), entry("t", O.READ, permission=DENY), entry("ü\n", O.ALL, "User:\udfff"[:5])}
    async with running(f"embedded:{tmp_path}", config=GUARDED) as (gateway, _), users(gateway, "root") as (root,):
        await root.create("t")
        assert {code for code, _ in await create(root, *acls)} == {0}
    async with (
        running(f"embedded:{tmp_path}", config=GUARDED) as (gateway, _),
        users(gateway, "alice", "root") as (alice, root),
    ):
        assert await may_write(alice, "t"), "with the first request"
        assert await describe(root) == acls


async def test_all_gateways_of_a_store_follow() -> None:
    store = f"memory:{next(names)}"
    async with (
        joined(store, 1, config=GUARDED) as (first, _),
        joined(store, 2, config=GUARDED) as (second, _),
        users(first, "root") as (root,),
        users(second, "root", "alice") as (other, alice),
    ):
        acl, cluster = entry("t", O.READ), entry("kafka-cluster", O.DESCRIBE, kind=R.CLUSTER)
        await create(root, acl, cluster)
        assert await describe(other) == {acl, cluster}, "who asks is told what all have made"
        await create(root, entry("u", O.READ))

        async def may() -> bool:
            return bool((await alice(wanted(m.DescribeAclsRequest), 3)).error_code == 0)

        await until(may, bool)
        (row,) = await delete(other, wanted(m.DeleteAclsFilter))
        assert len(row.matching_acls) == 3
        assert await describe(root) == set()
        await until(may, lambda found: not found)


async def test_entries_made_and_removed_at_two_gateways_at_once() -> None:
    """Whatever was told to be made is there, unless it was told to be removed."""
    store = f"memory:{next(names)}"
    async with (
        joined(store, 1, config=GUARDED) as (first, _),
        joined(store, 2, config=GUARDED) as (second, _),
        users(first, "root") as (one,),
        users(second, "root") as (two,),
    ):
        removed: list[Any] = []

        async def make() -> None:
            for number in range(40):
                assert await create(one, entry(f"t{number}", O.READ)) == [(0, "")]

        async def unmake() -> None:
            for _ in range(40):
                (row,) = await delete(two, wanted(m.DeleteAclsFilter))
                assert row.error_code == 0
                removed.extend(each.resource_name for each in row.matching_acls)

        async with anyio.create_task_group() as group:
            group.start_soon(make)
            group.start_soon(unmake)
        left = {each.name for each in await describe(one)}
        assert len(removed) == len(set(removed))
        assert left | set(removed) == {f"t{number}" for number in range(40)}
        assert not left & set(removed)
        assert await describe(two) == await describe(one)


async def test_a_row_that_cannot_be_read_lets_only_superusers_in(caplog: pytest.LogCaptureFixture) -> None:
    acl, hidden = entry("t", O.WRITE), entry("t", O.WRITE, permission=DENY)
    async with open_store(f"memory:{next(names)}") as store:
        async with running(store, config=GUARDED) as (gateway, _), users(gateway, "root", "alice") as (root, alice):
            await root.create("t")
            await create(root, acl)
            assert await may_write(alice, "t")
            await store.manager.commit({acl_key(hidden): encode_acl(hidden)[:-12]})

            async def may() -> bool:
                return await may_write(alice, "t")

            await until(may, lambda found: not found)
            assert "kclient acls remove --all" in caplog.text
            assert await describe(root) == {acl}
        async with running(store, config=GUARDED) as (gateway, _), users(gateway, "root", "alice") as (root, alice):
            assert not await may_write(alice, "t"), "nor after a restart"
            await delete(root, wanted(m.DeleteAclsFilter, resource_name_filter="nothing"))
            assert not await may_write(alice, "t")
            await delete(root, wanted(m.DeleteAclsFilter))
            await create(root, acl)
            assert await may_write(alice, "t")


def test_rows() -> None:
    acl = entry("a/b", O.READ, "User:ü", host="::1")
    key, row = acl_key(acl), encode_acl(acl)
    assert decode_acl(key, row) == acl
    assert acl_key(entry("a/b", O.WRITE, "User:ü", host="::1")) != key
    shown = shown_row(key, row)
    assert shown.kind == "access control list entry"
    assert shown.value["principal"] == "User:ü"
    with pytest.raises(ValueError, match="another entry"):
        decode_acl(acl_key(entry("b", O.READ)), row)
    with pytest.raises(ValueError, match="knows"):
        decode_acl(key, row.replace(b'"operation":3', b'"operation":1').partition(b"#")[0])


@pytest.mark.slow
async def test_very_many_at_once() -> None:
    """As many as one request may have, and one more."""
    async with running(config=GUARDED) as (gateway, _), users(gateway, "root", "alice") as (root, alice):
        await root.create("t")
        many = [entry(f"topic-{number}", O.READ, f"User:u{number}") for number in range(10_000)]
        assert {code for code, _ in await create(root, *many, entry("t", O.WRITE))} == {ErrorCode.POLICY_VIOLATION}
        assert await describe(root) == set()
        assert set(await create(root, *many)) == {(0, "")}
        await create(root, entry("t", O.WRITE))
        assert await may_write(alice, "t")
        assert len(await describe(root)) == 10_001
        (row,) = await delete(root, wanted(m.DeleteAclsFilter))
        assert row.error_code == ErrorCode.POLICY_VIOLATION
        (row,) = await delete(root, wanted(m.DeleteAclsFilter, operation=3))
        assert len(row.matching_acls) == 10_000
        assert await describe(root) == {entry("t", O.WRITE)}


@pytest.mark.slow
async def test_memory_for_entries_is_limited() -> None:
    config = {**GUARDED, "connections.max.memory.bytes": 16 << 20, "socket.request.max.bytes": 4 << 20}
    async with running(config=config) as (gateway, _), users(gateway, "root") as (root,):
        codes: set[int] = set()
        for start in range(0, 20_000, 1000):
            acls = [entry(f"topic-{number}", O.READ) for number in range(start, start + 1000)]
            codes |= {code for code, _ in await create(root, *acls)}
            if ErrorCode.POLICY_VIOLATION in codes:
                break
        assert codes == {0, ErrorCode.POLICY_VIOLATION}
        assert await create(root, entry("topic-0", O.READ)) == [(0, "")], "it is there"
        await delete(root, wanted(m.DeleteAclsFilter))
        assert await create(root, entry("new", O.READ)) == [(0, "")]


# --- the log


async def test_the_log_tells_who_was_denied_what(caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.name == "kclient.authorizer"]
        caplog.clear()
        return found

    async with running(config=GUARDED) as (gateway, _), users(gateway, "root", "al\nice") as (root, alice):
        caplog.set_level(logging.INFO, "kclient.authorizer")
        await root.create("t")
        assert told() == []
        await may_write(alice, "t")
        (line,) = told()
        assert line == (
            r"Principal = 'User:al\nice' is Denied operation = WRITE from host = "
            + line.partition("host = ")[2].partition(" on ")[0]
            + " on resource = TOPIC:LITERAL:t for request = Produce based on rule no entry"
        )
        await alice(m.MetadataRequest(topics=None), 12)
        await alice(m.ListGroupsRequest(), 4)
        await alice(m.DescribeClusterRequest(include_cluster_authorized_operations=True), 1)
        assert told() == [], "nothing that it named was refused"
        await may_write(alice, "evil\nPrincipal = User:root is Allowed")
        (line,) = told()
        assert line.count("\n") == 0
        deny = entry("t", O.WRITE, "User:al\nice", permission=DENY)
        caplog.set_level(logging.DEBUG, "kclient.authorizer")
        await create(root, deny)
        (line,) = told()
        assert "Principal = User:root is Allowed operation = ALTER" in line
        assert "for request = CreateAcls based on rule super user" in line
        await may_write(alice, "t")
        (line,) = told()
        assert "is Denied operation = WRITE" in line
        assert "DENY" in line
