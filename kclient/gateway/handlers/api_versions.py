"""ApiVersions: what this gateway serves. The answer to an unknown version is readable by every client."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.contexts import RequestContext
from kclient.gateway.features import Features
from kclient.gateway.handlers.handler import Handler, VersionRange
from kclient.protocol.messages.connection import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kclient.protocol.registry import ApiKey

_OF_TELEMETRY: Final = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})
_LONGEST: Final = 255
"""Characters of these names that are kept: every connection has some, and may not have logged in."""
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsHandler(Handler):
    """Answers ApiVersions.

    Args:
        versions: What is served, by API key; complete when the first request comes.
        features: What the cluster has.
        telemetry: Whether somebody reads the metrics that clients push: only then clients are told that they may.
    """

    API: ClassVar[ApiKey] = ApiKey.API_VERSIONS
    VERSIONS: ClassVar[VersionRange] = (0, 4)

    def __init__(
        self, versions: Mapping[int, VersionRange], features: Features, telemetry: Callable[[], bool] = lambda: False
    ) -> None:
        self._versions = versions
        self._features = features
        self._telemetry = telemetry
        self._served: dict[bool, list[ApiVersion]] = {}
        """By whether metrics may be pushed."""

    def begin(self, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        """All APIs and their versions, unless the client calls itself what it must not (KIP-511)."""
        if context.api_version >= 3:
            names = (request.client_software_name, request.client_software_version)
            if not all(_SOFTWARE.fullmatch(name) for name in names):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            connection = context.connection
            connection.software_name, connection.software_version = (name[:_LONGEST] for name in names)
        response = ApiVersionsResponse(api_keys=self.served())
        self._features.tell(response, context.api_version)
        return response

    def fail(self, request: object, context: RequestContext, error: KafkaError) -> ApiVersionsResponse:
        """The answer to a version that is not served: the caller sends it in the format of v0 (KIP-35)."""
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self.served())

    def served(self) -> list[ApiVersion]:
        """Every API with its range."""
        pushing = self._telemetry()
        if pushing not in self._served:
            self._served[pushing] = [
                ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in sorted(self._versions.items())
                if pushing or key not in _OF_TELEMETRY
            ]
        return self._served[pushing]
