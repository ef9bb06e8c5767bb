"""Kafka's settings of quotas as the gateway knows them: over which time rates are measured, how fast clients come."""

from __future__ import annotations

from typing import Final

from kclient.config.setting import Number
from kclient.gateway.setting import INT_MAX, BrokerSetting

MAX_CREATION_RATE: Final = "max.connection.creation.rate"
"""The one of these settings that listeners have, too, and that may change while a gateway runs."""
_SAMPLES: Final = "quota.window.num"
_SECONDS: Final = "quota.window.size.seconds"
_MUTATION_SAMPLES: Final = f"controller.{_SAMPLES}"
_MUTATION_SECONDS: Final = f"controller.{_SECONDS}"

QUOTA_WINDOW: Final = _SAMPLES, _SECONDS
"""The samples over which the use of clients is measured, and how long each is."""
MUTATION_WINDOW: Final = _MUTATION_SAMPLES, _MUTATION_SECONDS
"""The same of `controller_mutation_rate`."""

BROKER_SETTINGS_OF_QUOTAS: Final = (
    BrokerSetting(
        _MUTATION_SAMPLES,
        Number(1, 10_000),
        "11",
        "Samples over which changes of topics are measured for quotas: of as many partitions as come in that time at "
        "`controller_mutation_rate` all may come at once.",
    ),
    BrokerSetting(_MUTATION_SECONDS, Number(1), "1", "How long each of these samples is, in seconds."),
    BrokerSetting(
        MAX_CREATION_RATE,
        Number(0),
        str(INT_MAX),
        "Most connections in a second: listeners take no more for as long as that needs. "
        f"`listener.name.NAME.{MAX_CREATION_RATE}` is that of one listener, beside the gateway's.",
    ),
    BrokerSetting(
        _SAMPLES,
        Number(1, 10_000),
        "11",
        "Samples over which the use of clients is measured for quotas; the last one is under way.",
    ),
    BrokerSetting(_SECONDS, Number(1), "1", "How long each of these samples is, in seconds."),
)
