"""The settings in force of topics: what their overrides and the broker's settings give."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from kclient.errors import ConfigError, InvalidConfigurationError, KafkaError
from kclient.gateway.config import TopicConfig, check_topic_overrides
from kclient.net.fair_queue import Pace

if TYPE_CHECKING:
    from kclient.gateway.topics.record import TopicRecord
    from kclient.gateway.topics.table import TopicTable
    from kclient.net.fair_queue import Flow

logger: logging.Logger = logging.getLogger("kclient.gateway.topics")

Resolve: TypeAlias = Callable[[Mapping[str, str]], TopicConfig]
"""Works out the settings in force of a topic with these overrides."""


class KeptConfigs:
    """Settings in force, worked out once for all topics of the same overrides: while the broker's stay as they are."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._found: dict[frozenset[tuple[str, str]], TopicConfig] = {}

    def of(self, overrides: Mapping[str, str]) -> TopicConfig:
        """The settings in force of a topic with these overrides."""
        same = frozenset(overrides.items())
        found = self._found.get(same)
        if found is None:
            found = self._found[same] = self._resolve(overrides)
        return found


class TopicConfigs:
    """Has the settings of topics in force, in their partitions too.

    Args:
        topics: All of them.
        resolve: Works out the settings in force of a topic with these overrides: the broker's settings may change.
        flow: In whose turns many partitions are told of a change.
    """

    def __init__(self, topics: TopicTable, resolve: Resolve, flow: Flow) -> None:
        self._topics = topics
        self._flow = flow
        self.resolve = resolve

    def kept(self) -> KeptConfigs:
        """For working out the settings of many topics at once."""
        return KeptConfigs(self.resolve)

    def configure(self, record: TopicRecord) -> None:
        """Have a topic's record follow the settings as they are now."""
        record.configure(self.resolve(record.overrides))

    async def reconfigure(self, record: TopicRecord) -> None:
        """Have the settings in force that a topic's overrides give now. Raises `KafkaError` as `resolve_all` does."""
        self.configure(record)
        await self._tell_partitions(record, Pace(self._flow))

    @staticmethod
    async def _tell_partitions(record: TopicRecord, pace: Pace) -> None:
        """Have the partitions follow changed settings; one that fails keeps none of the others from it."""
        failure: KafkaError | None = None
        for partition in list(record.logs.values()):
            await pace.pause()
            if record.gone:
                return
            try:
                await partition.configure(record.config)  # as it is now: it may have been changed once more
            except KafkaError as error:
                logger.error("%s does not follow changed settings until it is told again: %s", partition, error)
                failure = error
        if failure is not None:
            raise failure

    async def resolve_all(self) -> None:
        """Take over changed broker settings into every topic that follows them.

        Others come in between. What they create, or alter, has the new settings already; the caller sees to it that
        the broker's settings stay what they are until this returns.

        Raises:
            KafkaError: Some partitions could not be told; all others were.
        """
        configs, pace = self.kept(), Pace(self._flow)
        failure: KafkaError | None = None
        for record in self._topics:
            await pace.pause()
            record.configure(configs.of(record.overrides))
            try:
                await self._tell_partitions(record, pace)
            except KafkaError as error:  # the other topics are told all the same
                failure = error
        if failure is not None:
            raise failure


def checked_overrides(overrides: Mapping[str, str | None]) -> dict[str, str]:
    """Topic settings as given, checked; `InvalidConfigurationError` as the protocol knows it."""
    try:
        return check_topic_overrides(overrides)
    except ConfigError as error:
        raise InvalidConfigurationError(str(error)) from error
