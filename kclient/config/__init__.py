"""Typed configuration: Kafka's settings with the Java client's names and defaults, checked once.

`ProducerConfig`, `ConsumerConfig`, `ShareConsumerConfig` and `AdminConfig` are frozen dataclasses; their `parse` takes
arguments in snake_case, a mapping with Kafka's dotted names, or a properties file.

They are imported when they are used: the gateway needs the kinds of settings alone (`config.setting`).
"""

from typing import TYPE_CHECKING

from kclient.lazy_exports import lazily

if TYPE_CHECKING:
    from kclient.config.admin import AdminConfig as AdminConfig
    from kclient.config.common import ClientConfig as ClientConfig
    from kclient.config.common import ConfigInput as ConfigInput
    from kclient.config.consumer import ConsumerConfig as ConsumerConfig
    from kclient.config.producer import ProducerConfig as ProducerConfig
    from kclient.config.properties import parse_properties as parse_properties
    from kclient.config.providers import ConfigProvider as ConfigProvider
    from kclient.config.setting import Setting as Setting
    from kclient.config.share_consumer import ShareConsumerConfig as ShareConsumerConfig

_EXPORTS = {
    "AdminConfig": "kclient.config.admin",
    "ClientConfig": "kclient.config.common",
    "ConfigInput": "kclient.config.common",
    "ConfigProvider": "kclient.config.providers",
    "ConsumerConfig": "kclient.config.consumer",
    "ProducerConfig": "kclient.config.producer",
    "Setting": "kclient.config.setting",
    "ShareConsumerConfig": "kclient.config.share_consumer",
    "parse_properties": "kclient.config.properties",
}

__all__ = sorted(_EXPORTS)  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # else the checkers would believe that every name exists
    __getattr__, __dir__ = lazily(__name__, _EXPORTS)
