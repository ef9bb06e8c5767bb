"""Delegation tokens on a cluster that answers as a test tells it to: attempts, old versions, errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import kclient
from kclient.errors import (
    DelegationTokenDisabledError,
    DelegationTokenNotFoundError,
    ErrorCode,
    UnsupportedVersionError,
)
from kclient.protocol.messages import (
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenResponse,
)
from kclient.protocol.registry import ApiKey
from tests.fake_kafka import FakeBroker, FakeKafka
from tests.unit.admin.scripted import KRAFT, VERSIONS, administering

pytestmark = pytest.mark.anyio

HMAC = "aGlkZGVu"
NEW = {
    ApiKey.CREATE_DELEGATION_TOKEN: (1, 3),
    ApiKey.RENEW_DELEGATION_TOKEN: (1, 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (1, 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (1, 3),
}
OLD = {**NEW, ApiKey.CREATE_DELEGATION_TOKEN: (1, 2), ApiKey.DESCRIBE_DELEGATION_TOKEN: (1, 2)}


class TokenKeeper:
    """Answers about tokens: with these codes one after the other, then with success."""

    def __init__(self, kafka: FakeKafka, *codes: ErrorCode) -> None:
        self.codes = list(codes)
        self.asked: list[Any] = []
        self.hangs = False
        """Whether the first to be asked never answers."""
        for key in NEW:
            kafka.scripts[key] = self._answer

    async def _answer(self, broker: FakeBroker, request: Any) -> Any:
        self.asked.append(request)
        if self.hangs:
            self.hangs = False
            broker.pause()
            await anyio.sleep_forever()
        code = self.codes.pop(0) if self.codes else ErrorCode.NONE
        match type(request).__name__:
            case "CreateDelegationTokenRequest":
                return CreateDelegationTokenResponse(
                    error_code=code, principal_type="User", principal_name="a", token_id="id", hmac=b"hidden",
                    issue_timestamp_ms=1, expiry_timestamp_ms=2, max_timestamp_ms=3,
                )  # fmt: skip
            case "RenewDelegationTokenRequest":
                return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=7)
            case "ExpireDelegationTokenRequest":
                return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=7)
        token = DescribedDelegationToken(
            principal_type="User", principal_name="a", token_id="id", hmac=b"hidden", renewers=[],
            issue_timestamp=1, expiry_timestamp=2, max_timestamp=3,
        )  # fmt: skip
        return DescribeDelegationTokenResponse(error_code=code, tokens=[] if code else [token])


@asynccontextmanager
async def keeping(
    *codes: ErrorCode, versions: dict[ApiKey, tuple[int, int]] = NEW, brokers: int = 1
) -> AsyncIterator[tuple[kclient.Admin, TokenKeeper]]:
    async with (
        FakeKafka(brokers=brokers, versions={**VERSIONS, **KRAFT, **versions}) as kafka,
        administering(kafka) as admin,
    ):
        yield admin, TokenKeeper(kafka, *codes)


async def test_a_new_token_that_the_controller_does_not_know_yet() -> None:
    unknown = [ErrorCode.DELEGATION_TOKEN_NOT_FOUND] * 2
    async with keeping(*unknown) as (admin, keeper):
        assert await admin.renew_delegation_token(HMAC) == 7
        assert [request.renew_period_ms for request in keeper.asked] == [-1] * 3
    async with keeping(*unknown) as (admin, keeper):
        assert await admin.expire_delegation_token(HMAC) == 7
        assert [request.expiry_time_period_ms for request in keeper.asked] == [-1] * 3


@pytest.mark.slow
async def test_one_that_nobody_knows_is_told_of_soon() -> None:
    async with keeping(*[ErrorCode.DELEGATION_TOKEN_NOT_FOUND] * 10_000) as (admin, _):
        with (
            anyio.fail_after(15),
            pytest.raises(DelegationTokenNotFoundError, match="has no token of this HMAC") as told,
        ):
            await admin.expire_delegation_token(HMAC)
    assert "hidden" not in str(told.value)
    assert HMAC not in str(told.value)


async def test_one_that_an_unanswered_attempt_may_have_ended() -> None:
    async with keeping(*[ErrorCode.DELEGATION_TOKEN_NOT_FOUND] * 10, brokers=3) as (admin, keeper):
        keeper.hangs = True
        with pytest.raises(DelegationTokenNotFoundError, match="An earlier attempt that got no answer may have ended"):
            await admin.expire_delegation_token(HMAC, timeout=3)
        assert len(keeper.asked) == 2


async def test_what_passes_is_tried_again() -> None:
    async with keeping(ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT) as (admin, keeper):
        token = await admin.create_delegation_token(max_lifetime_ms=5)
        assert (token.token_id, token.hmac.reveal(), token.owner, token.token_requester) == (
            "id",
            HMAC,
            "User:a",
            "User:a",
        )
        assert [request.max_lifetime_ms for request in keeper.asked] == [5] * 3
    async with keeping(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED) as (admin, _):
        with pytest.raises(DelegationTokenDisabledError, match=r"delegation\.token\.secret\.key"):
            await admin.describe_delegation_tokens()
        assert [token.token_id for token in await admin.describe_delegation_tokens()] == ["id"]


async def test_brokers_before_kafka_3_3() -> None:
    async with keeping(versions=OLD) as (admin, keeper):
        with pytest.raises(UnsupportedVersionError, match=r"for who asks only \(Kafka 3.3 does for others\)"):
            await admin.create_delegation_token(owner="User:b")
        assert keeper.asked == []
        assert (await admin.create_delegation_token()).token_requester == "User:a"
        assert (await admin.describe_delegation_tokens(["User:a"]))[0].token_requester == "User:a"
