"""Takes the mends of defects out that were found in races of life and death, each of them whole: see `lives`.

What a mend consists of is in several layers, each of which hides what another one lets through: a store that tells a
topic from its namesake, catalogues that know which has gone, locks that are held from reading to writing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from kclient.gateway.dynamic_config import DynamicConfig
from kclient.gateway.opening_ahead import Opener
from kclient.gateway.partition import Partition
from kclient.gateway.retention import Retention, cut
from kclient.gateway.topics.catalogue import TopicCatalogue
from kclient.gateway.topics.record import Intent, TopicRecord
from kclient.gateway.topics.remains import TopicRemains
from kclient.htp import Place
from kclient.htp.embedded.broker import EmbeddedBroker
from kclient.htp.errors import UnknownTopicError
from kclient.htp.memory.broker import MemoryBroker
from kclient.htp.memory.state import MemoryLog, MemoryState

_ANY_EPOCH = 1 << 30
"""Above all that are given."""


@contextmanager
def stores_open_by_name() -> Iterator[None]:
    """What is open under a topic's name is what whoever opens it gets, and what whoever deletes it removes."""
    open_embedded, delete_embedded = EmbeddedBroker._open, EmbeddedBroker._delete
    delete_of_epoch, open_log, delete = EmbeddedBroker.delete, MemoryState.open_log, MemoryBroker.delete

    async def open_held(broker: EmbeddedBroker, place: Place, *options: Any) -> Any:
        _, epoch, _, next_position = options
        held = broker._newest.get(place.topic)
        if held is None:
            info = await broker._manager.describe_topic(place.topic)
            return await open_embedded(broker, info.place, *options)
        topic = broker._held[held.incarnation]
        if epoch != topic.epoch:
            return await open_embedded(broker, held, *options)
        if next_position > topic.use().next:
            await broker._raise_next(topic.use(), next_position)
        return topic

    async def delete_any(broker: EmbeddedBroker, places: Any, *, epoch: int) -> None:
        await delete_of_epoch(broker, places, epoch=max(epoch, _ANY_EPOCH))

    async def delete_held(broker: EmbeddedBroker, places: Any) -> None:
        for place in places:
            held = broker._newest.get(place.topic)
            if held is not None and held != place:
                await broker._end_namesake(place.topic)
        await delete_embedded(broker, places)

    def open_newest(state: MemoryState, place: Place, *options: Any) -> MemoryLog:
        info = state.topic(place.topic)
        log = state.logs.get(state._newest.get(place[:2], -1))
        if log is None or info is None:
            if info is None:
                raise UnknownTopicError(f"There is no topic {place}")
            return open_log(state, info.place, *options)
        log.seal(options[0])
        return log

    async def delete_newest(broker: MemoryBroker, places: Any, *, epoch: int) -> None:
        state, places = broker._state, list(places)
        newest = [state.logs.get(state._newest.get(place[:2], -1)) for place in places]
        await delete(broker, places, epoch=max(epoch, _ANY_EPOCH))
        for log in newest:
            if log is not None and not log.gone:
                state.drop_log(log.place.incarnation)

    with (
        mock.patch.object(EmbeddedBroker, "_open", open_held),
        mock.patch.object(EmbeddedBroker, "delete", delete_any),
        mock.patch.object(EmbeddedBroker, "_delete", delete_held),
        mock.patch.object(MemoryState, "open_log", open_newest),
        mock.patch.object(MemoryBroker, "delete", delete_newest),
    ):
        yield


def _even_of_gone(self: Any) -> Iterator[tuple[TopicRecord, Partition]]:
    for record in self._topics:
        for index in range(record.partitions):
            gone, record.gone = record.gone, False
            try:
                partition = self._partitions.of(record, index)
            finally:
                record.gone = gone
            if partition is not None:
                yield record, partition


@contextmanager
def retention_opens_what_has_gone() -> Iterator[None]:
    """Defect 1: a pass goes on with the topics that there were when it began, and opens them."""
    with stores_open_by_name(), mock.patch.object(Retention, "_all", _even_of_gone):
        yield


@contextmanager
def the_start_opens_what_has_gone() -> Iterator[None]:
    """Defects 1 and 4: the opening of all partitions goes on with the topics that there were at the start."""

    def closed(opener: Opener) -> Iterator[Partition]:
        return (partition for _, partition in _even_of_gone(opener))

    with stores_open_by_name(), mock.patch.object(Opener, "_closed", closed):
        yield


@contextmanager
def retention_trims_by_name() -> Iterator[None]:
    """Defect 2: what is found out of one topic's log is cut off that which has its name by then."""

    async def apply(retention: Retention, partition: Partition) -> bool:
        await partition.ready()
        segments, config = await partition.segments(), partition.config
        found = cut(segments, config, retention._clock.wall_ms())
        now = retention._partitions.get(partition.name, partition.index)
        if found is None or now is None:
            return False
        if found.roll:
            await now.settled()
            await now.stored_in.roll()
        if now is partition:
            await now.trim(found.before)
        else:
            await now.stored_in.trim(found.before)
        return True

    with mock.patch.object(Retention, "_apply", apply):
        yield


@contextmanager
def retention_goes_by_old_settings() -> Iterator[None]:
    """Defect 2: a pass applies the settings of the topics that there were when it began, whatever has their names."""
    known: dict[Partition, Any] = {}

    async def by_old_settings(retention: Retention, partition: Partition) -> bool:
        config = known.pop(partition)
        now = retention._partitions.get(partition.name, partition.index)
        if now is None:
            return False
        await now.ready()
        found = cut(await now.segments(), config, retention._clock.wall_ms())
        if found is None:
            return False
        if found.roll:
            await now.settled()
            await now.stored_in.roll()
        await now.trim(found.before)
        return True

    def every(retention: Retention) -> Iterator[tuple[TopicRecord, Partition]]:
        for record, partition in list(_even_of_gone(retention)):
            known[partition] = record.config
            yield record, partition

    with mock.patch.multiple(Retention, _apply=by_old_settings, _all=every):
        yield


@contextmanager
def deletions_stumble_over_new_partitions() -> Iterator[None]:
    """Defect 3: partitions are ended one by one while others are added, offsets only afterwards."""

    async def deleted(remains: TopicRemains, record: TopicRecord, version: int | None = None) -> None:
        remains._topics.left[record.name] = Intent(record.mapping, record.topic_id, remains._run)
        if version is not None:
            remains._deletions[record.name] = version
        for partition in record.logs.values():
            partition.drop()
            await partition.left()
        record.gone = True
        await remains._offsets.topic_deleted(record.name)
        remains._retry()

    with mock.patch.object(TopicRemains, "deleted", deleted):
        yield


@contextmanager
def offsets_stay() -> Iterator[None]:
    """Defect 3: offset callbacks are skipped."""

    async def deleted(remains: TopicRemains, record: TopicRecord, version: int | None = None) -> None:
        topic_deleted = mock.AsyncMock()
        with mock.patch.object(remains, "_offsets", mock.Mock(topic_deleted=topic_deleted)):
            await original(remains, record, version)

    original = TopicRemains.deleted
    with mock.patch.object(TopicRemains, "deleted", deleted):
        yield


@contextmanager
def topics_are_altered_as_they_were() -> Iterator[None]:
    """Defect 5: new settings are made of those that there were before the turn to change them came."""
    alter = TopicCatalogue.alter

    async def early(catalogue: TopicCatalogue, name: str, change: Any, *, validate_only: bool = False) -> None:
        record = catalogue._topics.get(name)
        changed = None if record is None else change(dict(record.overrides))
        await alter(catalogue, name, change if changed is None else lambda _: changed, validate_only=validate_only)

    with mock.patch.object(TopicCatalogue, "alter", early):
        yield


@contextmanager
def the_broker_is_altered_as_it_was() -> Iterator[None]:
    """Defect 5, of the broker's settings."""
    alter = DynamicConfig.alter

    async def early(
        dynamic: DynamicConfig, change: Any, names: Collection[str], *, validate_only: bool = False
    ) -> None:
        changed = change(dict(dynamic._config.dynamic))
        await alter(dynamic, lambda _: changed, names, validate_only=validate_only)

    with mock.patch.object(DynamicConfig, "alter", early):
        yield
