"""Kafka's own topics, as far as clients look.

What Kafka keeps in `__consumer_offsets` and `__transaction_state`, a gateway keeps as rows of its store. Tools look for
these topics all the same, to see whether a cluster has groups, or which topics they have to leave out. So they are told
of, always and by all gateways of a store alike, with Kafka's numbers of partitions and settings, and as logs that are
empty. They are made of nothing but these records: no topic of HTP, no row and no log belongs to them.

Their partitions are led and moved like those of other topics, and whoever leads one coordinates the groups, or the
transactional ids, that Kafka would keep in it (`coordination.py`). All gateways of a store have to agree on that, so
the first one records how many partitions there are.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.gateway.config import TopicConfig
from kclient.gateway.coordination import CoordinatorType
from kclient.gateway.mapping import mapping_for
from kclient.gateway.rows.broker import decode_internal_topics, encode_internal_topics
from kclient.gateway.rows.keys import INTERNAL_TOPICS
from kclient.gateway.topics.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from kclient.gateway.topics.record import TopicRecord
from kclient.htp.errors import ConflictError

if TYPE_CHECKING:
    from kclient.gateway.config import BrokerConfig
    from kclient.htp.port import Manager

logger: logging.Logger = logging.getLogger("kclient.gateway")


class _Kind(NamedTuple):
    name: str
    number: str
    """The setting that tells how many partitions it has."""
    settings: dict[str, str]


_KINDS: Final = {
    CoordinatorType.GROUP: _Kind(
        CONSUMER_OFFSETS,
        "offsets.topic.num.partitions",
        {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"},
    ),
    CoordinatorType.TRANSACTION: _Kind(
        TRANSACTION_STATE,
        "transaction.state.log.num.partitions",
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "1",
            "segment.bytes": "104857600",
            "unclean.leader.election.enable": "false",
        },
    ),
}
"""With the settings that Kafka makes them with, but that they have one replica."""


class InternalTopic(NamedTuple):
    """One of Kafka's own topics."""

    kind: CoordinatorType
    """What its partitions stand for."""
    topic_id: bytes
    partitions: int


async def internal_topics(
    config: BrokerConfig, manager: Manager, cluster_id: str
) -> Mapping[CoordinatorType, InternalTopic]:
    """Kafka's own topics in a cluster: the first gateway over a store records how many partitions they have.

    Their ids follow from the cluster's.

    Args:
        config: Tells how many they have in a new store.
        manager: The store's.
        cluster_id: The id of the cluster.

    Raises:
        HtpError: It cannot be read or recorded.
    """
    wanted = {each.name: config.get_int(each.number) for each in _KINDS.values()}
    recorded = await _recorded(manager, wanted)
    for each in _KINDS.values():
        if recorded.get(each.name) != wanted[each.name]:
            logger.warning(
                "%s=%d does not hold: %s has %d partitions since the first gateway of the store has started",
                each.number, wanted[each.name], each.name, recorded[each.name],
            )  # fmt: skip
    return {
        kind: InternalTopic(
            kind, hashlib.sha256(f"{cluster_id}/{each.name}".encode()).digest()[:16], recorded[each.name]
        )
        for kind, each in _KINDS.items()
    }


async def _recorded(manager: Manager, wanted: Mapping[str, int]) -> Mapping[str, int]:
    while True:
        row = (await manager.get([INTERNAL_TOPICS])).get(INTERNAL_TOPICS)
        if row is not None:
            try:
                found = decode_internal_topics(row.value)
                if wanted.keys() <= found.keys():
                    return found
                logger.error("%s does not name all of Kafka's own topics, it is written anew", INTERNAL_TOPICS)
            except ValueError as error:
                logger.error(
                    "%s is damaged, and written anew with the numbers of this gateway's settings: restart the others "
                    "that serve the store, unless theirs are the same (%s)",
                    INTERNAL_TOPICS, error,
                )  # fmt: skip
        version = 0 if row is None else row.version
        try:
            await manager.commit({INTERNAL_TOPICS: encode_internal_topics(wanted)}, {INTERNAL_TOPICS: version})
        except ConflictError:  # another gateway over the same store was faster
            continue
        return wanted


def internal_records(topics: Iterable[InternalTopic], config: BrokerConfig) -> list[TopicRecord]:
    """Kafka's own topics as the table of topics has them.

    Args:
        topics: They.
        config: Tells the settings that they have from the broker.
    """
    return [
        TopicRecord(
            _KINDS[each.kind].name,
            each.topic_id,
            each.partitions,
            1,
            mapping_for("domain"),
            dict(_KINDS[each.kind].settings),
            TopicConfig.resolve(config, _KINDS[each.kind].settings),
        )
        for each in topics
    ]
