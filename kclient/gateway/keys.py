"""Where the gateway's rows lie in the manager's key-value part."""

from __future__ import annotations

from typing import Final

TOPIC_PREFIX: Final = "kafka/topic/"
"""One row per topic, by name: its id, partitions and settings."""
INTENT_PREFIX: Final = "kafka/intent/"
"""A creation or deletion that is under way, by topic name."""
LOG_PREFIX: Final = "kafka/log/"
"""The checkpoint of a partition, by topic id and number."""
START_PREFIX: Final = "kafka/log-start/"
"""The log start of a partition that was trimmed, by topic id and number, in case its checkpoint is damaged."""
