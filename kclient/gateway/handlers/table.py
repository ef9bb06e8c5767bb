"""The table of request handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kclient.gateway.features import Features
from kclient.gateway.handlers.api_versions import ApiVersionsHandler
from kclient.gateway.handlers.handler import Handler, VersionRange


class HandlerTable:
    """Every API that the gateway serves: its version range and its handler. It answers ApiVersions itself.

    Args:
        handlers: Of all other APIs.
        features: What ApiVersions tells of the cluster.
        telemetry: Whether clients are told that they may push metrics.
    """

    def __init__(
        self,
        handlers: Iterable[Handler],
        features: Features | None = None,
        telemetry: Callable[[], bool] = lambda: False,
    ) -> None:
        self.versions: dict[int, VersionRange] = {}
        self.handlers: dict[int, Handler] = {}
        versions = ApiVersionsHandler(self.versions, features or Features(), telemetry)
        for handler in (*handlers, versions):
            self.versions[int(handler.API)] = handler.VERSIONS
            self.handlers[int(handler.API)] = handler
