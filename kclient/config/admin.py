"""The settings of the admin client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kclient.config.common import LONG, ClientConfig
from kclient.config.setting import Boolean, List, Number, setting

__all__ = ["AdminConfig"]


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """The settings of the admin client; made by `parse`. Times are in milliseconds, sizes in bytes."""

    CLIENT: ClassVar[str] = "admin client"

    bootstrap_controllers: tuple[str, ...] = setting(
        List(), (), "Addresses of controllers to talk to instead of brokers (KIP-919).", served=False
    )
    connections_max_idle_ms: int = setting(
        Number(high=LONG), 300_000, "Connections that were idle for so long are closed; at 0 or below they never are."
    )
    default_api_timeout_ms: int = setting(Number(0), 60_000, "Time for calls that are given no `timeout`.")
    enable_metrics_push: bool = setting(
        Boolean(), False, "Whether the client's metrics are sent to the cluster (KIP-714).", served=False
    )
    retries: int = setting(
        Number(0), 2**31 - 1, "How often a request is tried again; better bound the time by `default.api.timeout.ms`."
    )
