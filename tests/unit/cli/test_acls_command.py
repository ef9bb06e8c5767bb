"""`kclient acls remove --all` on a gateway: the way out where an entry cannot be read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import anyio
import pytest

from kclient.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from kclient.cli.app import run
from kclient.gateway.acl_entries import AclEntry
from kclient.gateway.rows.acls import acl_key, encode_acl
from kclient.htp import open_store
from kclient.inprocess import reset
from kclient.sync import Admin, Gateway

pytestmark = pytest.mark.timeout(60)

MANY = 10_500
"""More than one request may remove."""


@pytest.fixture
def store() -> Iterator[str]:
    address = f"memory:{uuid.uuid4().hex}"
    yield address
    reset(address)


async def fill(address: str) -> None:
    """Add entries, one of them damaged."""
    acls = [
        AclEntry(
            ResourceType.TOPIC, PatternType.LITERAL, f"t{number}", "User:alice", "*", AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        for number in range(MANY + 1)
    ]  # fmt: skip
    rows = {acl_key(each): encode_acl(each) for each in acls}
    damaged = acl_key(acls[-1])
    rows[damaged] = rows[damaged][:-12]
    async with open_store(address) as opened:
        await opened.manager.commit(rows)


@pytest.mark.slow
def test_all_entries_are_removed_however_many_there_are(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"authorizer.class.name": "acls", "super.users": "User:ANONYMOUS"}
    with (
        Gateway(store, listen="127.0.0.1:0", config=config) as gateway,
        Admin(bootstrap_servers=gateway.bootstrap) as admin,
    ):
        anyio.run(fill, store)
        assert len(admin.describe_acls()) == MANY
        arguments = ["acls", "remove", "--all", "--bootstrap", gateway.bootstrap]
        assert run([*arguments, "--dry-run"]) == 0
        assert len(admin.describe_acls()) == MANY
        capsys.readouterr()
        assert run(arguments) == 0
        assert len(capsys.readouterr().out.splitlines()) == MANY + 1, "with the heading"
        assert admin.describe_acls() == []

    async def left() -> int:
        async with open_store(store) as opened:
            return len(await opened.manager.scan("kafka/acl/", limit=10))

    assert anyio.run(left) == 0, "nor what could not be read"
