"""Kafka's own topics, as far as clients look.

What Kafka keeps in `__consumer_offsets` and `__transaction_state`, a gateway keeps as rows of its store. Tools look for
these topics all the same, to see whether a cluster has groups, or which topics they have to leave out. So they are told
of, always and by all gateways of a store alike, with Kafka's numbers of partitions and settings, and as logs that are
empty. They are made of nothing but these records: no topic of HTP, no row and no log belongs to them.

Their partitions are led like those of other topics, so that they spread over the gateways. That the coordinator of a
group or transactional id leads the partition that Kafka would keep it in cannot be had: gateways coordinate each id by
itself, so the ids of one such partition have many coordinators.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.gateway.config import TopicConfig
from kclient.gateway.mapping import mapping_for
from kclient.gateway.topics.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from kclient.gateway.topics.record import TopicRecord

if TYPE_CHECKING:
    from kclient.gateway.config import BrokerConfig


class _Kind(NamedTuple):
    name: str
    number: str
    """The setting that tells how many partitions it has."""
    settings: dict[str, str]


_KINDS: Final = (
    _Kind(
        CONSUMER_OFFSETS,
        "offsets.topic.num.partitions",
        {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"},
    ),
    _Kind(
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
)
"""With the settings that Kafka makes them with, but that they have one replica."""


def internal_topics(config: BrokerConfig, cluster_id: str) -> list[TopicRecord]:
    """Kafka's own topics in a cluster. Their ids follow from its, so all gateways tell the same.

    Args:
        config: Tells how many partitions they have.
        cluster_id: The id of the cluster.
    """
    return [
        TopicRecord(
            kind.name,
            hashlib.sha256(f"{cluster_id}/{kind.name}".encode()).digest()[:16],
            config.get_int(kind.number),
            1,
            mapping_for("domain"),
            dict(kind.settings),
            TopicConfig.resolve(config, kind.settings),
        )
        for kind in _KINDS
    ]
