"""Answers to calls about several things that leave some of them out: these are not taken for done."""

from __future__ import annotations

from typing import Any

import pytest

from kclient.admin import AclBinding, AclOperation, NewTopic, ResourceType
from kclient.errors import UnknownServerError
from kclient.protocol.messages import (
    AclCreationResult,
    CreatableTopicResult,
    CreateAclsResponse,
    CreateTopicsResponse,
    DeleteAclsResponse,
)
from kclient.protocol.registry import ApiKey
from tests.fake_kafka import FakeBroker, FakeKafka
from tests.unit.admin.scripted import KRAFT, VERSIONS, administering

pytestmark = pytest.mark.anyio

ACLS = {ApiKey.CREATE_ACLS: (1, 3), ApiKey.DELETE_ACLS: (1, 3)}
TOLD = "the broker's answer does not tell what became of it"


def acl(name: str) -> AclBinding:
    return AclBinding(
        resource_type=ResourceType.TOPIC, resource_name=name, principal="User:a", operation=AclOperation.READ
    )


async def test_topics() -> None:
    def answer(_: FakeBroker, request: Any) -> Any:
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=request.topics[0].name, error_code=0)])

    async with FakeKafka(versions={**VERSIONS, **KRAFT}) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.CREATE_TOPICS] = answer
        with pytest.raises(UnknownServerError, match=f"b: {TOLD}"):
            await admin.create_topics([NewTopic("a"), NewTopic("b")])


async def test_acls() -> None:
    async with FakeKafka(versions={**VERSIONS, **KRAFT, **ACLS}) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.CREATE_ACLS] = lambda *_: CreateAclsResponse(results=[AclCreationResult(error_code=0)])
        kafka.scripts[ApiKey.DELETE_ACLS] = lambda *_: DeleteAclsResponse(filter_results=[])
        with pytest.raises(UnknownServerError, match=f"TOPIC b: {TOLD}"):
            await admin.create_acls([acl("a"), acl("b")])
        with pytest.raises(UnknownServerError, match=TOLD):
            await admin.delete_acls([acl("a").as_filter()])
