"""What stands before every request and response; `framing` puts it there."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage
from kclient.protocol.schema import field
from kclient.protocol.types import INT16, INT32, STRING

__all__ = [
    "RequestHeader",
    "ResponseHeader",
]


class RequestHeader(ApiMessage, versions="0-2", flexible="2+"):
    """What every request begins with.

    v1 brings the client id, v2 tagged fields; the client id keeps its two-byte length even then, because
    an old broker must be able to read the header of an ApiVersions request of any version.
    """

    request_api_key: int = field(INT16)
    request_api_version: int = field(INT16)
    correlation_id: int = field(INT32)
    client_id: str | None = field(STRING, "1+", nullable="1+", flexible="none")


class ResponseHeader(ApiMessage, versions="0-1", flexible="1+"):
    """What every response begins with; v1 has tagged fields. ApiVersions responses always use v0."""

    correlation_id: int = field(INT32)
