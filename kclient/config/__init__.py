"""Typed configuration: Kafka's settings with the Java client's names and defaults, checked once.

`ProducerConfig`, `ConsumerConfig` and `AdminConfig` are frozen dataclasses; their `parse` takes arguments in
snake_case, a mapping with Kafka's dotted names, or a properties file.
"""

from kclient.config.admin import AdminConfig as AdminConfig
from kclient.config.common import ClientConfig as ClientConfig
from kclient.config.common import ConfigInput as ConfigInput
from kclient.config.consumer import ConsumerConfig as ConsumerConfig
from kclient.config.producer import ProducerConfig as ProducerConfig
from kclient.config.properties import parse_properties as parse_properties
from kclient.config.setting import Setting as Setting

__all__ = [
    "AdminConfig",
    "ClientConfig",
    "ConfigInput",
    "ConsumerConfig",
    "ProducerConfig",
    "Setting",
    "parse_properties",
]
