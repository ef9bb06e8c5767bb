"""The gateway's settings, in Markdown.

`python docs/generate/gateway_settings.py > docs/reference/gateway.md` writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from kclient.gateway.setting import LONG_MAX, BrokerSetting
from kclient.gateway.settings import BROKER_SETTINGS, ELSEWHERE, TOPIC_SETTINGS, WITHOUT_EFFECT
from kclient.gateway.settings_of_telemetry import CLIENT_METRICS_SETTINGS
from kclient.gateway.settings_of_tls import OTHERS_OF_TLS, REFUSED_OF_TLS

__all__ = ["render"]

_START = """\
# Gateway

::: kclient.gateway.Gateway
::: kclient.gateway.GatewayMetric
::: kclient.gateway.MetricType
::: kclient.gateway.Sample

## Broker settings

For `--config NAME=VALUE` and `Gateway(config=...)`, with Kafka's names and defaults. An unknown name is an error that
suggests the nearest. Times are in milliseconds and sizes in bytes, where the name does not say otherwise.
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

These are accepted with a warning, and have no effect on a gateway: {names}.

Of those about TLS these are accepted with a warning that says why they have no effect:

{others}
and these are refused:

{refused}"""


def render() -> str:
    """The whole page."""
    broker = [setting for name, setting in BROKER_SETTINGS.items() if name not in ELSEWHERE]
    names = ", ".join(f"`{name}`" for name in WITHOUT_EFFECT)
    pasted = _PASTED.format(names=names, others=_reasons(OTHERS_OF_TLS), refused=_reasons(REFUSED_OF_TLS))
    return "\n".join(
        [
            _START,
            _table(broker),
            _TOPICS,
            _table(TOPIC_SETTINGS.values()),
            _CLIENT_METRICS,
            _table(CLIENT_METRICS_SETTINGS.values()),
            pasted,
        ]
    )


def _reasons(settings: Mapping[str, str]) -> str:
    return "".join(f"- `{name}`: {reason}\n" for name, reason in settings.items())


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
