"""The settings of the admin client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kclient.config.common import LONG, ClientConfig
from kclient.config.setting import Boolean, List, Number, setting
from kclient.errors import ConfigError

__all__ = ["AdminConfig"]


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """The settings of the admin client; made by `parse`. Times are in milliseconds, sizes in bytes."""

    CLIENT: ClassVar[str] = "admin client"

    bootstrap_controllers: tuple[str, ...] = setting(
        List(),
        (),
        """Addresses of some controllers, to talk to these instead of brokers (KIP-919; Kafka 3.7), say where no broker
        runs: of the quorum, features, settings and so on, not of topics and groups. Takes the place of
        `bootstrap.servers`.""",
    )
    connections_max_idle_ms: int = setting(
        Number(high=LONG), 300_000, "Connections that were idle for so long are closed; at 0 or below they never are."
    )
    default_api_timeout_ms: int = setting(Number(0), 60_000, "Time for calls that are given no `timeout`.")
    enable_metrics_push: bool = setting(
        Boolean(), False, "Whether the client's metrics are sent to the cluster, where that asks for them (KIP-714)."
    )
    retries: int = setting(
        Number(0), 2**31 - 1, "How often a request is tried again; better bound the time by `default.api.timeout.ms`."
    )

    @classmethod
    def _complete(cls, values: dict[str, Any]) -> None:
        controllers = values.get("bootstrap.controllers")
        if not controllers:
            return
        if values.get("bootstrap.servers", controllers) != controllers:
            raise ConfigError(
                "bootstrap.servers and bootstrap.controllers are both set: set the first to talk to brokers, or the "
                "second to talk to controllers"
            )
        values["bootstrap.servers"] = controllers
