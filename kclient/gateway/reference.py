"""The gateway's settings as Markdown: `python -m kclient.gateway.reference > docs/reference/gateway.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from kclient.gateway.settings import BROKER_SETTINGS, ELSEWHERE, LONG_MAX, TOPIC_SETTINGS, WITHOUT_EFFECT, Setting

__all__ = ["render"]

_START = """\
# Gateway

::: kclient.gateway.Gateway

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

_PASTED = """\
## Pasted from a Kafka broker

These are accepted with a warning, and have no effect on a gateway: {names}.
"""


def render() -> str:
    """The whole page."""
    broker = [setting for name, setting in BROKER_SETTINGS.items() if name not in ELSEWHERE]
    names = ", ".join(f"`{name}`" for name in WITHOUT_EFFECT)
    return "\n".join([_START, _table(broker), _TOPICS, _table(TOPIC_SETTINGS.values()), _PASTED.format(names=names)])


def _table(settings: Iterable[Setting]) -> str:
    rows = ["| setting | values | default | |", "|---|---|---|---|"]
    rows += [f"| `{item.name}` | {_values(item)} | {_default(item)} | {item.doc} |" for item in settings]
    return "\n".join([*rows, ""])


def _values(setting: Setting) -> str:
    if setting.choices:
        shown = ", ".join(f"`{choice}`" for choice in setting.choices)
        return f"some of {shown}" if setting.type.name == "LIST" else shown
    if setting.type.name == "BOOLEAN":
        return "true or false"
    if setting.type.name in ("INT", "LONG", "SHORT", "DOUBLE"):
        kind = "number" if setting.type.name == "DOUBLE" else "whole number"
        if setting.minimum is None:
            return kind
        if setting.maximum is None:
            return f"{kind}, {setting.minimum:.15g} or more"
        return f"{kind}, {setting.minimum:.15g} to {setting.maximum:.15g}"
    return "text"


def _default(setting: Setting) -> str:
    if not setting.default:
        return "none" if setting.default is None else "empty"
    return "no limit" if setting.default == str(LONG_MAX) else f"`{setting.default}`"


if __name__ == "__main__":
    sys.stdout.write(render())
