"""What descriptions of groups show of their members: the partitions of topics, by names that a client may see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

from kclient.acls import AclOperation, ResourceType
from kclient.errors import TopicAuthorizationError
from kclient.gateway.handlers._work import FEW, Work, rows_for

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import ConnectionContext
    from kclient.gateway.groups.consumers.member import ConsumerMember
    from kclient.gateway.topics.table import TopicTable

R = TypeVar("R")

_SLICE: Final = 4_096
"""So many topics of a member are looked at before others have their turn."""
_NAME: Final = 100
"""About how many bytes of memory a name takes that a member reads."""


def check_read(names: Iterable[str], access: Access, client: ConnectionContext) -> Work:
    """Whether a member may read topics of these names, in steps.

    Raises:
        TopicAuthorizationError: Its client may not DESCRIBE one of them.
    """
    for count, name in enumerate(names, 1):
        if not access.allows(client, AclOperation.DESCRIBE, ResourceType.TOPIC, name, asked=True):
            raise TopicAuthorizationError(f"{client.principal} may not DESCRIBE the topic {name[:300]}")
        if count % FEW == 0:
            yield _NAME * FEW


def names_of_topics(
    members: Iterable[ConsumerMember], access: Access, topics: TopicTable, client: ConnectionContext
) -> Work:
    """The names by ids of the topics of which members have partitions, or are to have some; in steps.

    A deleted topic has no name.

    Raises:
        TopicAuthorizationError: The client may not DESCRIBE one of them.
    """
    names: dict[bytes, str] = {}
    for count, member in enumerate(members, 1):
        for number, topic_id in enumerate(chain(member.assigned, member.target), 1):
            record = None if topic_id in names else topics.by_id(topic_id)
            if record is not None:
                if not access.allows(client, AclOperation.DESCRIBE, ResourceType.TOPIC, record.name):
                    raise TopicAuthorizationError(
                        f"members of the group read topics that {client.principal} may not DESCRIBE"
                    )
                names[topic_id] = record.name
            if number % _SLICE == 0:
                yield None
        if count % FEW == 0:
            yield None
    return names


def rows_of_topics(
    partitions: Mapping[bytes, Collection[int]],
    names: Mapping[bytes, str],
    make: Callable[[bytes, str, Sequence[int]], R],
) -> list[R]:
    """A row for each topic that has one of these names: a member may have got others since they were looked up."""
    return rows_for(
        [topic_id for topic_id in partitions if topic_id in names],
        lambda topic_id: make(topic_id, names[topic_id], sorted(partitions[topic_id])),
    )
