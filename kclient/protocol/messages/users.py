"""Stored SCRAM credentials and client quotas."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, BYTES, FLOAT64, INT8, INT16, INT32, STRING

__all__ = [
    "AlterClientQuotasRequest",
    "AlterClientQuotasRequestEntityData",
    "AlterClientQuotasRequestEntryData",
    "AlterClientQuotasResponse",
    "AlterClientQuotasResponseEntityData",
    "AlterClientQuotasResponseEntryData",
    "AlterUserScramCredentialsRequest",
    "AlterUserScramCredentialsResponse",
    "AlterUserScramCredentialsResult",
    "ComponentData",
    "CredentialInfo",
    "DescribeClientQuotasRequest",
    "DescribeClientQuotasResponse",
    "DescribeClientQuotasResponseEntityData",
    "DescribeClientQuotasResponseEntryData",
    "DescribeUserScramCredentialsRequest",
    "DescribeUserScramCredentialsResponse",
    "DescribeUserScramCredentialsResult",
    "OpData",
    "ScramCredentialDeletion",
    "ScramCredentialUpsertion",
    "UserName",
    "ValueData",
]


class UserName(Message):
    """One of the `users` of a `DescribeUserScramCredentialsRequest`."""

    name: str = field(STRING)


class DescribeUserScramCredentialsRequest(ApiMessage, api_key=50, versions="0", flexible="0+"):
    """Asks which SCRAM credentials users have (KIP-554); null or none means all users."""

    users: list[UserName] | None = field(ArrayOf(UserName), nullable="0+")


class CredentialInfo(Message):
    """One of the `credential_infos` of a `DescribeUserScramCredentialsResult`."""

    mechanism: int = field(INT8)
    iterations: int = field(INT32)


class DescribeUserScramCredentialsResult(Message):
    """One of the `results` of a `DescribeUserScramCredentialsResponse`."""

    user: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    credential_infos: list[CredentialInfo] = field(ArrayOf(CredentialInfo))


class DescribeUserScramCredentialsResponse(ApiMessage, api_key=50, versions="0", flexible="0+"):
    """Mechanism and iterations of each credential; never the secret itself."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = field(ArrayOf(DescribeUserScramCredentialsResult))


class ScramCredentialDeletion(Message):
    """One of the `deletions` of a `AlterUserScramCredentialsRequest`."""

    name: str = field(STRING)
    mechanism: int = field(INT8)


class ScramCredentialUpsertion(Message):
    """One of the `upsertions` of a `AlterUserScramCredentialsRequest`."""

    name: str = field(STRING)
    mechanism: int = field(INT8)
    iterations: int = field(INT32)
    salt: bytes = field(BYTES, sensitive=True)
    salted_password: bytes = field(BYTES, sensitive=True)


class AlterUserScramCredentialsRequest(ApiMessage, api_key=51, versions="0", flexible="0+"):
    """Deletes, adds or replaces SCRAM credentials; the password is sent salted and hashed."""

    deletions: list[ScramCredentialDeletion] = field(ArrayOf(ScramCredentialDeletion))
    upsertions: list[ScramCredentialUpsertion] = field(ArrayOf(ScramCredentialUpsertion))


class AlterUserScramCredentialsResult(Message):
    """One of the `results` of a `AlterUserScramCredentialsResponse`."""

    user: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class AlterUserScramCredentialsResponse(ApiMessage, api_key=51, versions="0", flexible="0+"):
    """Whether it worked, for each user."""

    throttle_time_ms: int = field(INT32)
    results: list[AlterUserScramCredentialsResult] = field(ArrayOf(AlterUserScramCredentialsResult))


class ComponentData(Message):
    """One of the `components` of a `DescribeClientQuotasRequest`."""

    entity_type: str = field(STRING)
    match_type: int = field(INT8)
    match: str | None = field(STRING, nullable="0+")


class DescribeClientQuotasRequest(ApiMessage, api_key=48, versions="0-1", flexible="1+"):
    """Finds client quotas by user, client id or address (KIP-546)."""

    components: list[ComponentData] = field(ArrayOf(ComponentData))
    strict: bool = field(BOOL)


class DescribeClientQuotasResponseEntityData(Message):
    """One of the `entity` of a `DescribeClientQuotasResponseEntryData`."""

    entity_type: str = field(STRING)
    entity_name: str | None = field(STRING, nullable="0+")


class ValueData(Message):
    """One of the `values` of a `DescribeClientQuotasResponseEntryData`."""

    key: str = field(STRING)
    value: float = field(FLOAT64)


class DescribeClientQuotasResponseEntryData(Message):
    """One of the `entries` of a `DescribeClientQuotasResponse`."""

    entity: list[DescribeClientQuotasResponseEntityData] = field(ArrayOf(DescribeClientQuotasResponseEntityData))
    values: list[ValueData] = field(ArrayOf(ValueData))


class DescribeClientQuotasResponse(ApiMessage, api_key=48, versions="0-1", flexible="1+"):
    """The quotas that match."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    entries: list[DescribeClientQuotasResponseEntryData] | None = field(
        ArrayOf(DescribeClientQuotasResponseEntryData), nullable="0+"
    )


class AlterClientQuotasRequestEntityData(Message):
    """One of the `entity` of a `AlterClientQuotasRequestEntryData`."""

    entity_type: str = field(STRING)
    entity_name: str | None = field(STRING, nullable="0+")


class OpData(Message):
    """One of the `ops` of a `AlterClientQuotasRequestEntryData`."""

    key: str = field(STRING)
    value: float = field(FLOAT64)
    remove: bool = field(BOOL)


class AlterClientQuotasRequestEntryData(Message):
    """One of the `entries` of a `AlterClientQuotasRequest`."""

    entity: list[AlterClientQuotasRequestEntityData] = field(ArrayOf(AlterClientQuotasRequestEntityData))
    ops: list[OpData] = field(ArrayOf(OpData))


class AlterClientQuotasRequest(ApiMessage, api_key=49, versions="0-1", flexible="1+"):
    """Sets or removes client quotas (KIP-546)."""

    entries: list[AlterClientQuotasRequestEntryData] = field(ArrayOf(AlterClientQuotasRequestEntryData))
    validate_only: bool = field(BOOL)


class AlterClientQuotasResponseEntityData(Message):
    """One of the `entity` of a `AlterClientQuotasResponseEntryData`."""

    entity_type: str = field(STRING)
    entity_name: str | None = field(STRING, nullable="0+")


class AlterClientQuotasResponseEntryData(Message):
    """One of the `entries` of a `AlterClientQuotasResponse`."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    entity: list[AlterClientQuotasResponseEntityData] = field(ArrayOf(AlterClientQuotasResponseEntityData))


class AlterClientQuotasResponse(ApiMessage, api_key=49, versions="0-1", flexible="1+"):
    """Whether it worked, for each entity."""

    throttle_time_ms: int = field(INT32)
    entries: list[AlterClientQuotasResponseEntryData] = field(ArrayOf(AlterClientQuotasResponseEntryData))
