"""A SCRAM credential that is to go, and an attempt that nobody answers: it may have done it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from kclient.admin import ScramMechanism, UserScramCredentialDeletion
from kclient.errors import ErrorCode, ResourceNotFoundError
from kclient.protocol.messages import AlterUserScramCredentialsResponse, AlterUserScramCredentialsResult
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
