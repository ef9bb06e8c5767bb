"""Makes topics of their rows."""

from __future__ import annotations

import logging
from itertools import zip_longest
from typing import TYPE_CHECKING

from kclient.errors import KafkaError
from kclient.gateway.mapping import mapping_for
from kclient.gateway.rows.keys import INTENTS, TOPICS, topic_key
from kclient.gateway.rows.topics import TopicRow
from kclient.gateway.topics.names import check_name
from kclient.gateway.topics.record import Intent, TopicRecord
from kclient.htp.rows import scan_pages

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.topics.settings import KeptConfigs, TopicConfigs
    from kclient.gateway.topics.table import TopicTable
    from kclient.htp.port import Manager, Versioned

logger: logging.Logger = logging.getLogger("kclient.gateway.topics")


class TopicReader:
    """Reads rows of topics.

    Args:
        topics: Where the topics are found then.
        settings: Of the topics.
        manager: Keeps the rows.
        lease: Under which rows of older versions are written anew.
    """

    def __init__(self, topics: TopicTable, settings: TopicConfigs, manager: Manager, lease: HeldLease) -> None:
        self._topics = topics
        self._settings = settings
        self._manager = manager
        self._lease = lease

    async def load(self) -> None:
        """Read all topics."""
        async for page in scan_pages(self._manager, TOPICS):
            await self.load_rows({key.removeprefix(TOPICS): row for key, row in page.items()})

    async def intents(self) -> dict[str, tuple[Intent, int]]:
        """What is being made, changed and removed, by topic, and the versions of the rows that say so.

        Of topics whose rows are damaged nothing is served.
        """
        found = {}
        async for page in scan_pages(self._manager, INTENTS):
            for key, row in page.items():
                name = key.removeprefix(INTENTS)
                try:
                    found[name] = Intent.of(row.value), row.version
                except (ValueError, KafkaError) as error:
                    record = self._topics.get(name)
                    if record is None:
                        text = f"what its deletion left cannot be removed, its intent is damaged: {error}"
                        self._not_served(name, text)
                        continue
                    # of a growth: what that has left is no partition's, and whoever grows the topic removes it
                    logger.warning(
                        "the intent of topic %s, which was to grow, is damaged, and is removed: %s", name, error
                    )
                    found[name] = Intent(record.mapping, record.topic_id), row.version
        return found

    async def load_rows(self, rows: dict[str, Versioned]) -> None:
        """Add topics to the table that these rows, by name, tell of; those whose rows cannot be read are damaged."""
        configs = self._settings.kept()
        older: list[TopicRecord] = []
        for name, row in rows.items():
            try:
                record = self._parse(name, row, configs)
                if not record.places:  # recorded by a version that did not know them
                    record.places = await record.mapping.find(self._manager, name, record.partitions)
                    self._settings.configure(record)
                    older.append(record)
            except (ValueError, KafkaError) as error:
                self._not_served(name, f"its row cannot be read: {error}")
            else:
                self._topics.add(record)
        if older:
            migrated: dict[str, bytes | None] = {topic_key(record.name): record.row() for record in older}
            version = await self._manager.commit(migrated, lease=self._lease.current)
            for record in older:
                record.version = version

    def _parse(self, name: str, row: Versioned, configs: KeptConfigs) -> TopicRecord:
        check_name(name)
        fields = TopicRow.decode(row.value)
        mapping, overrides = mapping_for(fields.mapping), dict(fields.overrides)
        record = TopicRecord(
            name=name,
            topic_id=fields.topic_id,
            partitions=fields.partitions,
            replication_factor=fields.replication_factor,
            mapping=mapping,
            overrides=overrides,
            config=configs.of(overrides),
            mirror=fields.mirror,
            places=[
                mapping.place(name, number, incarnation, broker)
                for number, (incarnation, broker) in enumerate(zip_longest(fields.incarnations, fields.brokers))
            ],
            version=row.version,
        )
        record.configure(record.config)
        return record

    def _not_served(self, name: str, reason: str) -> None:
        self._topics.damaged[name] = reason
        logger.error(
            "topic %s is not served, %s. Nothing of it was changed: start the version that wrote it, restore mgr "
            "from a backup, or delete the topic",
            name, reason,
        )  # fmt: skip

    def parse(self, name: str, row: Versioned) -> TopicRecord:
        """The topic that a row tells of. Raises `ValueError` or `KafkaError` if it cannot be read."""
        return self._parse(name, row, self._settings.kept())
