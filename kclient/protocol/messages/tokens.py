"""Delegation tokens (KIP-48): credentials with a limited life that a client can hand to others."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BYTES, INT16, INT32, INT64, STRING

__all__ = [
    "CreatableRenewers",
    "CreateDelegationTokenRequest",
    "CreateDelegationTokenResponse",
    "DescribeDelegationTokenOwner",
    "DescribeDelegationTokenRequest",
    "DescribeDelegationTokenResponse",
    "DescribedDelegationToken",
    "DescribedDelegationTokenRenewer",
    "ExpireDelegationTokenRequest",
    "ExpireDelegationTokenResponse",
    "RenewDelegationTokenRequest",
    "RenewDelegationTokenResponse",
]


class CreatableRenewers(Message):
    """One of the `renewers` of a `CreateDelegationTokenRequest`."""

    principal_type: str = field(STRING)
    principal_name: str = field(STRING)


class CreateDelegationTokenRequest(ApiMessage, api_key=38, versions="0-3", flexible="2+"):
    """Asks for a delegation token; from v3 on also for another owner (KIP-373)."""

    owner_principal_type: str | None = field(STRING, "3+", nullable="3+")
    owner_principal_name: str | None = field(STRING, "3+", nullable="3+")
    renewers: list[CreatableRenewers] = field(ArrayOf(CreatableRenewers))
    max_lifetime_ms: int = field(INT64)


class CreateDelegationTokenResponse(ApiMessage, api_key=38, versions="0-3", flexible="2+"):
    """The token and its dates, in milliseconds since the epoch. v3 adds who requested it."""

    error_code: int = field(INT16)
    principal_type: str = field(STRING)
    principal_name: str = field(STRING)
    token_requester_principal_type: str = field(STRING, "3+")
    token_requester_principal_name: str = field(STRING, "3+")
    issue_timestamp_ms: int = field(INT64)
    expiry_timestamp_ms: int = field(INT64)
    max_timestamp_ms: int = field(INT64)
    token_id: str = field(STRING)
    hmac: bytes = field(BYTES, sensitive=True)
    throttle_time_ms: int = field(INT32)


class RenewDelegationTokenRequest(ApiMessage, api_key=39, versions="0-2", flexible="2+"):
    """Prolongs a delegation token."""

    hmac: bytes = field(BYTES, sensitive=True)
    renew_period_ms: int = field(INT64)


class RenewDelegationTokenResponse(ApiMessage, api_key=39, versions="0-2", flexible="2+"):
    """When the token now expires."""

    error_code: int = field(INT16)
    expiry_timestamp_ms: int = field(INT64)
    throttle_time_ms: int = field(INT32)


class ExpireDelegationTokenRequest(ApiMessage, api_key=40, versions="0-2", flexible="2+"):
    """Sets when a delegation token expires; a negative period ends it at once."""

    hmac: bytes = field(BYTES, sensitive=True)
    expiry_time_period_ms: int = field(INT64)


class ExpireDelegationTokenResponse(ApiMessage, api_key=40, versions="0-2", flexible="2+"):
    """When the token now expires."""

    error_code: int = field(INT16)
    expiry_timestamp_ms: int = field(INT64)
    throttle_time_ms: int = field(INT32)


class DescribeDelegationTokenOwner(Message):
    """One of the `owners` of a `DescribeDelegationTokenRequest`."""

    principal_type: str = field(STRING)
    principal_name: str = field(STRING)


class DescribeDelegationTokenRequest(ApiMessage, api_key=41, versions="0-3", flexible="2+"):
    """Lists delegation tokens by owner; null means all that the client may see."""

    owners: list[DescribeDelegationTokenOwner] | None = field(ArrayOf(DescribeDelegationTokenOwner), nullable="0+")


class DescribedDelegationTokenRenewer(Message):
    """One of the `renewers` of a `DescribedDelegationToken`."""

    principal_type: str = field(STRING)
    principal_name: str = field(STRING)


class DescribedDelegationToken(Message):
    """One of the `tokens` of a `DescribeDelegationTokenResponse`."""

    principal_type: str = field(STRING)
    principal_name: str = field(STRING)
    token_requester_principal_type: str = field(STRING, "3+")
    token_requester_principal_name: str = field(STRING, "3+")
    issue_timestamp: int = field(INT64)
    expiry_timestamp: int = field(INT64)
    max_timestamp: int = field(INT64)
    token_id: str = field(STRING)
    hmac: bytes = field(BYTES, sensitive=True)
    renewers: list[DescribedDelegationTokenRenewer] = field(ArrayOf(DescribedDelegationTokenRenewer))


class DescribeDelegationTokenResponse(ApiMessage, api_key=41, versions="0-3", flexible="2+"):
    """The tokens. v3 adds who requested them."""

    error_code: int = field(INT16)
    tokens: list[DescribedDelegationToken] = field(ArrayOf(DescribedDelegationToken))
    throttle_time_ms: int = field(INT32)
