"""Asks a broker for the names of topics that are known by their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.cluster import version_for
from kclient.errors import UnsupportedVersionError
from kclient.protocol.messages import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.net.connection import Connection

_FIRST_BY_ID = 12


async def ask_names(connection: Connection, topic_ids: Iterable[bytes]) -> dict[bytes, str]:
    """The names of topics by their ids; those are left out that the broker does not know (yet), or may not tell of.

    Raises:
        UnsupportedVersionError: The broker tells no names by ids.
        KafkaError: It did not answer.
    """
    version = version_for(connection, MetadataRequest)
    if version < _FIRST_BY_ID:
        raise UnsupportedVersionError(f"{connection.address} tells no topics by their ids (Metadata v{_FIRST_BY_ID})")
    topics = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in sorted(topic_ids)]
    response = await connection.request(MetadataRequest(topics=topics, allow_auto_topic_creation=False), version)
    return {bytes(topic.topic_id): topic.name for topic in response.topics if topic.name and not topic.error_code}
