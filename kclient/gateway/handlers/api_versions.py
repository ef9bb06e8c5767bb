"""ApiVersions: what this gateway serves. The answer to an unknown version is readable by every client."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.core import Core, RequestContext
from kclient.gateway.handlers import Handler
from kclient.protocol.messages.connection import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kclient.protocol.registry import ApiKey

API_VERSIONS: dict[ApiKey, tuple[int, int]] = {ApiKey.API_VERSIONS: (0, 4)}
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsHandler(Handler):
    """Answers ApiVersions."""

    API: ClassVar[ApiKey] = ApiKey.API_VERSIONS

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._served: list[ApiVersion] = []

    def begin(self, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        """All APIs and their versions, unless the client calls itself what it must not (KIP-511)."""
        if context.api_version >= 3:
            names = (request.client_software_name, request.client_software_version)
            if not all(_SOFTWARE.fullmatch(name) for name in names):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        return ApiVersionsResponse(api_keys=self.served())

    def fail(self, request: object, context: RequestContext, error: KafkaError) -> ApiVersionsResponse:
        """The answer to a version that is not served: the caller sends it in the format of v0 (KIP-35)."""
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self.served())

    def served(self) -> list[ApiVersion]:
        """Every API with its range."""
        if not self._served:
            self._served = [
                ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in sorted(self.core.table.versions.items())
            ]
        return self._served


HANDLERS: dict[ApiKey, type[Handler]] = {ApiKey.API_VERSIONS: ApiVersionsHandler}
