"""Settings of the metrics that clients push (KIP-714): the broker's, and those of a subscription to some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kclient.config.setting import List, Number
from kclient.gateway.setting import BrokerSetting

DEFAULT_INTERVAL_MS: Final = 300_000
"""How often clients push, or ask whether they are to, where no subscription says so."""

BROKER_SETTINGS_OF_TELEMETRY: Final = (
    BrokerSetting(
        "telemetry.max.bytes",
        Number(1),
        "1048576",
        "The most bytes of metrics that a client may push at a time (KIP-714), compressed and decompressed.",
    ),
    BrokerSetting(
        "telemetry.max.series",
        Number(1),
        "10000",
        "The most values of pushed metrics that are kept for Prometheus, each with its labels; what comes beyond them "
        "is left out and counted. kclient's own.",
    ),
)

CLIENT_METRICS_SETTINGS: Final[Mapping[str, BrokerSetting]] = {
    setting.name: setting
    for setting in (
        BrokerSetting(
            "interval.ms",
            Number(),
            str(DEFAULT_INTERVAL_MS),
            "How often clients push metrics, in milliseconds, 100 to 3600000.",
        ),
        BrokerSetting(
            "match",
            List(),
            "",
            "Whose metrics are wanted: ATTRIBUTE=PATTERN with commas between, a regular expression of Java for the "
            "whole value of client_instance_id, client_id, client_software_name, client_software_version, "
            "client_source_address or client_source_port. All have to match; those of all clients if it is empty.",
        ),
        BrokerSetting(
            "metrics",
            List(),
            "",
            "Which metrics are wanted: beginnings of their names, or * for all; none if it is empty.",
        ),
    )
}
"""Of a subscription to metrics of clients, the resource CLIENT_METRICS."""
