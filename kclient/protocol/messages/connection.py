"""The first requests on a connection: which APIs the broker has, and who the client is."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, BYTES, INT16, INT32, INT64, STRING

__all__ = [
    "ApiVersion",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "FinalizedFeatureKey",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SupportedFeatureKey",
]


class ApiVersionsRequest(ApiMessage, api_key=18, versions="0-4", flexible="3+"):
    """Asks which APIs the broker serves, in which versions; the first request on a connection.

    v3 adds name and version of the client software (KIP-511). A broker that does not know the request's
    version answers in the format of v0 with UNSUPPORTED_VERSION and its own range.
    """

    client_software_name: str = field(STRING, "3+", ignorable=True)
    client_software_version: str = field(STRING, "3+", ignorable=True)


class ApiVersion(Message):
    """One of the `api_keys` of a `ApiVersionsResponse`."""

    api_key: int = field(INT16)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


class SupportedFeatureKey(Message):
    """One of the `supported_features` of a `ApiVersionsResponse`."""

    name: str = field(STRING)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


class FinalizedFeatureKey(Message):
    """One of the `finalized_features` of a `ApiVersionsResponse`."""

    name: str = field(STRING)
    max_version_level: int = field(INT16)
    min_version_level: int = field(INT16)


class ApiVersionsResponse(ApiMessage, api_key=18, versions="0-4", flexible="3+"):
    """The APIs of a broker and their versions, and since v3 the features of the cluster.

    Its response header is of version 0 in every version, so that it can be read before anything was
    negotiated. v4 allows features whose lowest version is 0.
    """

    error_code: int = field(INT16)
    api_keys: list[ApiVersion] = field(ArrayOf(ApiVersion))
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = field(ArrayOf(SupportedFeatureKey), "3+", ignorable=True, tag=0)
    finalized_features_epoch: int = field(INT64, "3+", default=-1, ignorable=True, tag=1)
    finalized_features: list[FinalizedFeatureKey] = field(ArrayOf(FinalizedFeatureKey), "3+", ignorable=True, tag=2)
    zk_migration_ready: bool = field(BOOL, "3+", ignorable=True, tag=3)


class SaslHandshakeRequest(ApiMessage, api_key=17, versions="0-1"):
    """Chooses the SASL mechanism before authentication.

    After v0 the tokens follow as bare frames, after v1 inside SaslAuthenticate requests (KIP-152).
    """

    mechanism: str = field(STRING)


class SaslHandshakeResponse(ApiMessage, api_key=17, versions="0-1"):
    """Whether the mechanism is enabled, and which ones are."""

    error_code: int = field(INT16)
    mechanisms: list[str] = field(ArrayOf(STRING))


class SaslAuthenticateRequest(ApiMessage, api_key=36, versions="0-2", flexible="2+"):
    """Carries one message of the SASL exchange to the broker."""

    auth_bytes: bytes = field(BYTES, sensitive=True)


class SaslAuthenticateResponse(ApiMessage, api_key=36, versions="0-2", flexible="2+"):
    """Carries the broker's part of the SASL exchange, or says why it failed.

    v1 adds the life of the session, after which the client has to authenticate again (KIP-368).
    """

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    auth_bytes: bytes = field(BYTES, sensitive=True)
    session_lifetime_ms: int = field(INT64, "1+", ignorable=True)
