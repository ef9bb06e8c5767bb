"""A gateway that follows what another changes in the access control lists: it never allows what nobody has allowed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.lowlevel
import pytest

from kclient.acls import AclOperation, AclPermissionType
from kclient.concurrency import loop_soon
from kclient.errors import ErrorCode
from kclient.gateway.rows.acls import acl_key, encode_acl
from kclient.gateway.security.acl_authorizer import AclAuthorizer
from kclient.gateway.security.acls import Acls
from kclient.gateway.shields import Shields
from kclient.gateway.topics.followed import FollowedTopics
from kclient.htp import open_store
from kclient.htp.errors import TokenTooOldError
from kclient.net.fair_queue import FairQueue
from kclient.protocol import messages as m
from tests.gateway_wire import names
from tests.unit.gateway.test_gateway_acls import GUARDED, R, create, delete, entry, users, wanted
from tests.unit.gateway_cluster.together import joined
from tests.wire_session import until

if TYPE_CHECKING:
    from kclient.gateway.contexts import ConnectionContext
    from kclient.gateway.ownership import HeldLease
    from kclient.htp.port import ChangePage, Manager, Versioned
    from kclient.memory_ledger import LimitedAccount
    from kclient.net.fair_queue import Flow

pytestmark = pytest.mark.anyio

WRITE, DENY = AclOperation.WRITE, AclPermissionType.DENY


class InSmallPages:
    """A manager that tells one row at a time, and before each calls a function."""

    def __init__(self, manager: Manager, before: Callable[[], object]) -> None:
        self._manager = manager
        self._before = before
        self.forgotten = False
        """Whether it knows no old changes any more."""

    async def changes(self, prefixes: Iterable[str], since: str | None = None, **_options: Any) -> ChangePage:
        self._before()
        if since is not None and self.forgotten:
            self.forgotten = False
            raise TokenTooOldError("forgotten")
        return await self._manager.changes(prefixes, since, limit=1)

    async def scan(self, prefix: str, *, after: str, limit: int) -> dict[str, Versioned]:
        self._before()
        return await self._manager.scan(prefix, after=after, limit=limit)


class _Client:
    rights = None
    principal = "User:alice"
    client_host = "/127.0.0.1"


class _Memory:
    def add(self, size: int) -> None:
        pass


def alice() -> ConnectionContext:
    return cast("ConnectionContext", _Client())


def follower(authorizer: AclAuthorizer, manager: object, flow: Flow) -> Acls:
    """The entries at a gateway that changes none."""
    memory = cast("LimitedAccount", _Memory())
    return Acls(authorizer, cast("Manager", manager), cast("HeldLease", None), Shields(), memory, flow)


@pytest.mark.parametrize("anew", [False, True], ids=["changes", "all rows"])
async def test_what_is_denied_by_the_same_commit_is_never_allowed(monkeypatch: pytest.MonkeyPatch, anew: bool) -> None:
    """Whichever of the two comes on an earlier page, when they are added and when they are removed."""
    monkeypatch.setattr("kclient.htp.rows._PAGE", 1)
    acls = [entry(f"t{number}", WRITE) for number in range(8)]
    acls += [each._replace(permission=DENY) for each in acls]
    firsts = {acl_key(each) < acl_key(each._replace(permission=DENY)) for each in acls[:8]}
    assert firsts == {False, True}
    client, authorizer, looked = alice(), AclAuthorizer(), 0

    def look() -> None:
        nonlocal looked
        looked += 1
        assert not any(authorizer.allows(client, WRITE, R.TOPIC, each.name) for each in acls)

    async with open_store(f"memory:{next(names)}") as store:
        manager = InSmallPages(store.manager, look)
        following = follower(authorizer, manager, FairQueue(loop_soon()).flow())
        await following.read_all()
        for rows in ({acl_key(each): encode_acl(each) for each in acls}, {acl_key(each): None for each in acls}):
            await store.manager.commit(rows)
            manager.forgotten, looked = anew, 0
            await following.apply(())
            assert looked > 1
            assert len(following) == sum(row is not None for row in rows.values())


async def test_what_can_be_read_again_is_denied_at_once() -> None:
    """While entries that were damaged are put in force, the others allow nothing yet."""
    denies = [entry(f"t{number}", WRITE, permission=DENY) for number in range(100)]
    client, authorizer, looked = alice(), AclAuthorizer(), 0
    ticks = itertools.count()

    async def look() -> None:
        nonlocal looked
        while True:
            looked += 1
            assert not any(authorizer.allows(client, WRITE, R.TOPIC, each.name) for each in denies)
            await anyio.lowlevel.checkpoint()

    async with open_store(f"memory:{next(names)}") as store:
        flow = FairQueue(loop_soon(), clock=lambda: float(next(ticks))).flow()  # no turn is long enough
        following = follower(authorizer, store.manager, flow)
        everything = entry("*", WRITE)
        rows = {acl_key(each): encode_acl(each) for each in denies}
        damaged = {key: row[:-12] for key, row in rows.items()}
        await store.manager.commit({**damaged, acl_key(everything): encode_acl(everything)})
        await following.read_all()
        assert authorizer.unreadable
        await store.manager.commit(rows)
        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await following.apply(())
            group.cancel_scope.cancel()
        assert looked > len(denies) / 16
        assert authorizer.allows(client, WRITE, R.TOPIC, "other")


async def test_a_right_is_taken_away_while_topics_are_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Very many that another gateway has made take many seconds."""
    began: list[object] = []
    both = anyio.Event()

    async def apply(followed: FollowedTopics, _changes: object) -> None:
        began.append(followed)
        if len(began) == 2:
            both.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(FollowedTopics, "apply", apply)
    store, right = f"memory:{next(names)}", entry("kafka-cluster", AclOperation.DESCRIBE, kind=R.CLUSTER)
    async with (
        joined(store, 1, config=GUARDED) as (first, _),
        joined(store, 2, config=GUARDED) as (second, _),
        users(first, "root") as (root,),
        users(second, "alice") as (asks,),
    ):

        async def code() -> int:
            return int((await asks(m.DescribeLogDirsRequest(topics=[]), 4)).error_code)

        await create(root, right)
        await until(code, lambda found: not found)
        await root.create("t")
        await both.wait()
        await delete(root, wanted(m.DeleteAclsFilter))
        assert await until(code, bool, 20) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
