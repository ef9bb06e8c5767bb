"""The gateway's settings, in Markdown.

`python docs/generate/gateway_settings.py > docs/reference/gateway.md` writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from kclient.gateway.setting import LONG_MAX, BrokerSetting
from kclient.gateway.settings import BROKER_SETTINGS
from kclient.gateway.settings_of_brokers import REFUSED, WITHOUT_EFFECT
from kclient.gateway.settings_of_telemetry import CLIENT_METRICS_SETTINGS
from kclient.gateway.settings_of_topics import TOPIC_SETTINGS

__all__ = ["render"]

_START = """\
# Gateway

::: kclient.gateway.Gateway
::: kclient.gateway.GatewayMetric
::: kclient.gateway.MetricType
::: kclient.gateway.Sample
::: kclient.gateway.Reloaded

## Broker settings

For `--config NAME=VALUE`, files of settings (`--config FILE`) and `Gateway(config=...)`, with Kafka's names and
defaults. An unknown name is an error that suggests the nearest. Times are in milliseconds and sizes in bytes, where the
name does not say otherwise.
"""

_TOPICS = """\
## Topic settings

For `kclient topics create --set NAME=VALUE`, `topics alter` and `Admin.alter_configs`. A topic without a value of its
own follows the broker setting of the same meaning. Those without effect are there because Kafka's tools set and show
them.
"""

_CLIENT_METRICS = """\
## Settings of subscriptions to clients' metrics

For `kclient configs set --client-metrics NAME`, `Admin.alter_configs` and Kafka's `kafka-client-metrics`: which
metrics clients are to push (KIP-714), see [the guide](../guide/gateway.md#metrics-of-clients). A subscription of which
no setting is left is gone.
"""

_PASTED = """\
## Pasted from a Kafka broker

Every setting of a broker of Kafka 4.3 is known. These are accepted, and have no effect on a gateway. The log tells of
those that were given, once at the start, with the reasons:

| why | settings |
|---|---|
{others}
These are refused, unless they ask for nothing but what a gateway does anyway, as
`remote.log.storage.system.enable=false`:

{refused}
Names that begin with `confluent.`, `metrics.jmx.`, `rlmm.config.` or `rsm.config.` are those of plug-ins, and have no
effect either."""


def render() -> str:
    """The whole page."""
    broker = [setting for name, setting in BROKER_SETTINGS.items() if name not in REFUSED]
    reasons: dict[str, list[str]] = {}
    for name, reason in WITHOUT_EFFECT.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    others = "".join(f"| {reason} | {', '.join(names)} |\n" for reason, names in reasons.items())
    refused = "".join(f"- `{name}`: {refusal.reason}\n" for name, refusal in REFUSED.items())
    pasted = _PASTED.format(others=others, refused=refused)
    topics, metrics = _table(TOPIC_SETTINGS.values()), _table(CLIENT_METRICS_SETTINGS.values())
    return "\n".join([_START, _table(broker), _TOPICS, topics, _CLIENT_METRICS, metrics, pasted]) + "\n"


def _table(settings: Iterable[BrokerSetting]) -> str:
    rows = ["| setting | values | default | |", "|---|---|---|---|"]
    rows += [f"| `{item.name}` | {item.kind.text} | {_default(item)} | {item.doc} |" for item in settings]
    return "\n".join([*rows, ""])


def _default(setting: BrokerSetting) -> str:
    if not setting.default:
        return "none" if setting.default is None else "empty"
    return "no limit" if setting.default == str(LONG_MAX) else f"`{setting.default}`"


if __name__ == "__main__":
    sys.stdout.write(render())
