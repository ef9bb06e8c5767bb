"""Calls with little time: what does not exist is told as such, and not that the time was over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

import kclient
from kclient.admin import OffsetSpec
from kclient.errors import DelegationTokenNotFoundError, ErrorCode, UnknownTopicOrPartitionError
from kclient.protocol.messages import ExpireDelegationTokenResponse, RenewDelegationTokenResponse
from kclient.protocol.registry import ApiKey
from kclient.testing import memory_broker
from kclient.types import TopicPartition
from tests.fake_kafka import FakeKafka
from tests.unit.admin.scripted import KRAFT, VERSIONS, administering

pytestmark = pytest.mark.anyio

MISTYPED = TopicPartition("mistyped", 0)
OF_PARTITIONS: dict[str, Callable[[kclient.Admin], Awaitable[object]]] = {
    "list_offsets": lambda admin: admin.list_offsets({MISTYPED: OffsetSpec.LATEST}, timeout=1),
    "delete_records": lambda admin: admin.delete_records({MISTYPED: 0}, timeout=1),
    "alter_group_offsets": lambda admin: admin.alter_group_offsets("g", {MISTYPED: 0}, timeout=1),
    "reset_group_offsets": lambda admin: admin.reset_group_offsets("g", OffsetSpec.LATEST, [MISTYPED], timeout=1),
}


@pytest.mark.parametrize("name", OF_PARTITIONS)
async def test_partitions(name: str) -> None:
    with memory_broker() as address:
        settings = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 20}
        async with kclient.Admin(bootstrap_servers=address, **settings) as admin:
            with pytest.raises(UnknownTopicOrPartitionError, match="mistyped-0"):
                await OF_PARTITIONS[name](admin)


async def test_delegation_tokens() -> None:
    versions = {**VERSIONS, **KRAFT, ApiKey.RENEW_DELEGATION_TOKEN: (1, 2), ApiKey.EXPIRE_DELEGATION_TOKEN: (1, 2)}
    code = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    async with FakeKafka(versions=versions) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.RENEW_DELEGATION_TOKEN] = lambda *_: RenewDelegationTokenResponse(error_code=code)
        kafka.scripts[ApiKey.EXPIRE_DELEGATION_TOKEN] = lambda *_: ExpireDelegationTokenResponse(error_code=code)
        with pytest.raises(DelegationTokenNotFoundError):
            await admin.renew_delegation_token("aGlkZGVu", timeout=0.5)
        with pytest.raises(DelegationTokenNotFoundError):
            await admin.expire_delegation_token("aGlkZGVu", timeout=0.5)
