"""The reference of all settings, in Markdown.

`python docs/generate/client_settings.py > docs/reference/settings.md` writes it.
"""

from __future__ import annotations

import sys
from typing import Any

from kclient.config.admin import AdminConfig
from kclient.config.common import ClientConfig
from kclient.config.consumer import ConsumerConfig
from kclient.config.producer import ProducerConfig
from kclient.config.setting import Choice, Setting
from kclient.config.share_consumer import ShareConsumerConfig

__all__ = ["render"]

_INTRODUCTION = """\
# Settings

Names, meanings and defaults are the Java client's; the tables say where a default differs. Settings are given as
arguments in snake_case, as a mapping or as a properties file (its path or its text), with Kafka's dotted names or
with underscores:

```python
kclient.Producer(bootstrap_servers="localhost:9092", linger_ms=20)
kclient.Producer({"bootstrap.servers": "localhost:9092", "linger.ms": 20})
kclient.Producer("producer.properties", linger_ms=20)
```

Arguments count more than the file. Java's class names are understood where there is a counterpart
(`org.apache.kafka.common.serialization.StringSerializer` is `"string"`). An unknown name is an error that suggests
the nearest; so is a name of librdkafka's, with Kafka's name for it. What kclient cannot do yet is marked below, and
raises `NotYetSupportedError` when it is set to anything but its default: no setting is accepted and then ignored.
Times are in milliseconds, sizes in bytes.
"""

_SECURITY = """\
The `ssl.` settings take effect with `security.protocol` `SSL` and `SASL_SSL`, the `sasl.` settings with
`SASL_PLAINTEXT` and `SASL_SSL`; the guide's page on security shows them.
"""


_CLIENTS: tuple[tuple[str, type[ClientConfig]], ...] = (
    ("Producer", ProducerConfig),
    ("Consumer", ConsumerConfig),
    ("Share consumer", ShareConsumerConfig),
    ("Admin client", AdminConfig),
)


def render() -> str:
    """The whole reference."""
    parts = [_INTRODUCTION]
    for title, cls in _CLIENTS:
        own = {name: item for name, item in cls.settings().items() if _is_own(cls, item)}
        parts.append(f"## {title}\n\n{_table(own)}")
    common = {name: item for name, item in ClientConfig.settings().items() if not _is_security(name)}
    parts.append("## All clients\n\nThe producer's and the consumer's defaults; the admin client's own are above.\n")
    parts.append(_table(common))
    security = {name: item for name, item in ClientConfig.settings().items() if _is_security(name)}
    parts.append(f"## Security\n\n{_SECURITY}\n{_table(security)}")
    return "\n".join(parts)


def _is_own(cls: type[ClientConfig], item: Setting) -> bool:
    return item.attribute in vars(cls).get("__annotations__", {})


def _is_security(name: str) -> bool:
    return name.startswith(("sasl.", "ssl.", "security."))


def _table(settings: dict[str, Setting]) -> str:
    rows = ["| setting | values | default | |", "|---|---|---|---|"]
    rows += [_row(item) for _, item in sorted(settings.items())]
    return "\n".join(rows) + "\n"


def _row(item: Setting) -> str:
    notes = [item.doc]
    if item.own:
        notes.append("The Java client has no such setting.")
    if item.differs_from_java:
        notes.append(f"Java's default is {_shown(item.java_default, item)}.")
    if not item.served:
        notes.append("**Not supported yet.**")
    elif item.served_values is not None:
        served = ", ".join(_shown(value, item) for value in item.served_values)
        notes.append(f"**Supported so far: {served}.**")
    default = "required" if item.required else _shown(item.default, item)
    return f"| `{item.name}` | {item.kind.text} | {default} | {' '.join(notes)} |"


def _shown(value: Any, item: Setting) -> str:
    """A value as it is written in a properties file."""
    if isinstance(item.kind, Choice) and item.kind.meanings is not None:
        value = next(word for word, meaning in item.kind.meanings.items() if meaning == value)
    if value is None or value in ("", ()):
        return "none" if value is None else "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{','.join(map(str, value))}`" if isinstance(value, tuple) else f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(render())
