"""Where the gateway's rows lie in the manager's key-value part; groups' names are percent-encoded."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from kclient.htp.rows import parse_number
from kclient.records.bounds import INT32_MAX
from kclient.types import TopicPartition

TOPICS: Final = "kafka/topic/"
"""One row per topic, by name: its id, partitions and settings."""
INTENTS: Final = "kafka/intent/"
"""A creation or deletion that is under way, by topic name."""
CHECKPOINTS: Final = "kafka/log/"
"""The checkpoint of a partition, by topic id and number."""
LOG_STARTS: Final = "kafka/log-start/"
"""The log start of a partition that was trimmed, by topic id and number, in case its checkpoint is damaged."""
EXTENTS: Final = "kafka/extents/"
"""Where a partition lies that does not lie in one piece, by topic id and number; and where some of its offsets do."""
INDEXED: Final = "kafka/indexed/"
"""Up to which message of a topic that partitions share the index of these tells everything, by topic id."""
BLOCKS: Final = "kafka/blocks/"
"""Blocks of the index of a partition that shares its topic, by topic id and number, and the number of the row."""
ENTRIES: Final = "kafka/entries/"
"""The entries of a block, by topic id, number of the partition and number of the block."""
ABORTED: Final = "kafka/aborted/"
"""Aborted transactions of a partition, by topic id and number, and the number of the chunk."""
UNITS: Final = "kafka/unit/"
"""The leader epoch of a unit that has one of its own, by topic id and number."""
SHARES: Final = "kafka/share/"
"""What a share group has delivered of a partition, by topic id, group and number."""
GROUPS: Final = "group/"
"""A group with its members; one that only commits offsets has no row."""
MEMBERS: Final = "group-member/"
"""A member of a consumer, share or streams group, by group and member."""
OFFSETS: Final = "group-offset/"
"""A committed offset, by group, topic and partition."""
PENDING: Final = "group-pending/"
"""What a transaction is to commit for a group, by group and transactional id, until it is decided."""
SHARED_TOPICS: Final = "group-share/"
"""That a share group has rows below `SHARES` for partitions of a topic, by group and topic id."""
TRANSACTIONS: Final = "kafka/transaction/"
"""A transactional id, with its producer and its transaction."""
SETTINGS: Final = "kafka/config/broker"
"""The settings that were changed while a gateway ran."""
GROUP_SETTINGS: Final = "kafka/config/group/"
"""The settings of a group, by its name."""
CLIENT_METRICS: Final = "kafka/config/client-metrics/"
"""A subscription to metrics of clients, by its name."""
FEATURES: Final = "kafka/features"
"""The levels of features that UpdateFeatures has set."""
SCRAM: Final = "kafka/scram/"
"""The SCRAM credentials of a user, by name."""
DELEGATION_TOKENS: Final = "kafka/delegation-token/"
"""A delegation token, by its id."""
SCRAM_DECOYS: Final = "kafka/scram-decoys"
"""The key by which all gateways show the same to users who do not exist."""
ACLS: Final = "kafka/acl/"
"""An entry of the access control lists, by a hash of all of it."""
QUOTAS: Final = "kafka/quota/"
"""The quotas of an entity: a user, a client id, both, or an address."""
PRODUCER_IDS: Final = "kafka/producer-ids"
"""The first producer id that nobody was given."""
LEADER_EPOCH: Final = "kafka/leader-epoch"
"""No gateway or unit has had a leader epoch above this, in case that the row of the lease or a unit is damaged."""
CLUSTER_ID: Final = "kafka/cluster-id"
"""The id of the cluster, which is the store's."""
INTERNAL_TOPICS: Final = "kafka/internal-topics"
"""How many partitions Kafka's own topics have."""
GATEWAYS: Final = "kafka/node/"
"""A gateway that serves the store, by its number; the lease of this name says whether it lives."""
ASSIGNMENT: Final = "kafka/assignment"
"""The generations of gateways, from which follows who leads what."""
RELEASED: Final = "kafka/released/"
"""Up to which generation a gateway has handed over what it led before, by its number."""
LEASE: Final = "kafka/gateway"
"""The right to serve the store. Its epoch numbers the generation that begins with it."""
FIRST_LEASES: Final = "kafka/gateway/"
"""The first versions had a lease for each node.id, and let the leader epochs go backwards when that was changed."""

_NAMES: Final = 100
"""Bytes of a key beside the group: the topic, as long as most are, and the rest."""


def topic_key(name: str) -> str:
    """The key of a topic's row."""
    return TOPICS + name


def intent_key(name: str) -> str:
    """The key of what is under way with a topic of this name."""
    return INTENTS + name


def checkpoint_key(topic_id: bytes, partition: int) -> str:
    """The key of a partition's checkpoint."""
    return f"{CHECKPOINTS}{topic_id.hex()}/{partition}"


def log_start_key(topic_id: bytes, partition: int) -> str:
    """The key of a partition's log start."""
    return f"{LOG_STARTS}{topic_id.hex()}/{partition}"


def extents_key(topic_id: bytes, partition: int) -> str:
    """The key of a partition's list of extents."""
    return f"{EXTENTS}{topic_id.hex()}/{partition}"


def chunks_key(topic_id: bytes, partition: int) -> str:
    """The key of what is known of the positions of a partition's offsets."""
    return f"{EXTENTS}{topic_id.hex()}/{partition}/chunks"


def indexed_key(topic_id: bytes) -> str:
    """The key of what the index of a shared topic tells."""
    return f"{INDEXED}{topic_id.hex()}/0"


def blocks_key(topic_id: bytes, partition: int, row: int) -> str:
    """The key of some blocks of a partition's index."""
    return f"{BLOCKS}{topic_id.hex()}/{partition}/{row}"


def parse_blocks_key(key: str) -> tuple[int, int]:
    """The partition and the row that a key of `blocks_key` names. Raises `ValueError` if it is not such a key."""
    _, partition, row = key.removeprefix(BLOCKS).split("/")
    return parse_number(partition.encode(), 0, INT32_MAX), parse_number(row.encode())


def entries_key(topic_id: bytes, partition: int, block: int) -> str:
    """The key of a block's entries."""
    return f"{ENTRIES}{topic_id.hex()}/{partition}/{block}"


def aborted_key(topic_id: bytes, partition: int, chunk: int) -> str:
    """The key of a chunk of a partition's aborted transactions."""
    return f"{ABORTED}{topic_id.hex()}/{partition}/{chunk}"


def unit_key(topic_id: bytes, number: int) -> str:
    """The key of a unit's leader epoch."""
    return f"{UNITS}{topic_id.hex()}/{number}"


def parse_unit_key(key: str) -> tuple[bytes, int]:
    """The topic and the number that a key of `unit_key` names. Raises `ValueError` if it is not such a key."""
    topic_id, number = key.removeprefix(UNITS).split("/")
    return bytes.fromhex(topic_id), parse_number(number.encode(), 0, INT32_MAX)


def gateway_key(node_id: int) -> str:
    """The key of a gateway's row, and the name of its lease."""
    return f"{GATEWAYS}{node_id}"


def parse_gateway_key(key: str) -> int:
    """The gateway that a key of `gateway_key` names. Raises `ValueError` if it is not such a key."""
    return parse_number(key.removeprefix(GATEWAYS).encode(), 0, INT32_MAX)


def released_key(node_id: int) -> str:
    """The key of what a gateway has handed over."""
    return f"{RELEASED}{node_id}"


def parse_released_key(key: str) -> int:
    """The gateway that a key of `released_key` names. Raises `ValueError` if it is not such a key."""
    return parse_number(key.removeprefix(RELEASED).encode(), 0, INT32_MAX)


def of_topic(topic_id: bytes, *, shared: bool = True) -> tuple[str, ...]:
    """The prefixes of all rows of a topic's partitions.

    Args:
        topic_id: Of the topic.
        shared: Its partitions share an HTP topic, which has an index; or it is not known whether they do.
    """
    kinds = (CHECKPOINTS, LOG_STARTS, EXTENTS, ABORTED, UNITS, SHARES) + ((INDEXED, BLOCKS, ENTRIES) if shared else ())
    return tuple(f"{kind}{topic_id.hex()}/" for kind in kinds)


def shares_of_group(topic_id: bytes, group_id: str) -> str:
    """What the keys of the partitions of a topic begin with that a share group reads."""
    return f"{SHARES}{topic_id.hex()}/{quote(group_id, safe='')}/"


def share_key(topic_id: bytes, group_id: str, partition: int) -> str:
    """The key of what a share group has delivered of a partition."""
    return f"{shares_of_group(topic_id, group_id)}{partition}"


def parse_share_key(key: str) -> tuple[bytes, str, int]:
    """Topic, group and partition that a key of `share_key` names. Raises `ValueError` if it is not such a key."""
    topic_id, group_id, partition = key.removeprefix(SHARES).split("/")
    return bytes.fromhex(topic_id), unquote(group_id), parse_number(partition.encode(), 0, INT32_MAX)


def shared_topics_of_group(group_id: str) -> str:
    """What the keys of the topics begin with that a share group has rows for."""
    return f"{SHARED_TOPICS}{quote(group_id, safe='')}/"


def shared_topic_key(group_id: str, topic_id: bytes) -> str:
    """The key of what says that a share group has rows for a topic."""
    return shared_topics_of_group(group_id) + topic_id.hex()


def parse_shared_topic_key(key: str) -> tuple[str, bytes]:
    """The group and the topic that a key of `shared_topic_key` names. Raises `ValueError` if it is not such a key."""
    group_id, topic_id = key.removeprefix(SHARED_TOPICS).split("/")
    return unquote(group_id), bytes.fromhex(topic_id)


def group_key(group_id: str) -> str:
    """The key of a group's row."""
    return GROUPS + quote(group_id, safe="")


def parse_group_key(key: str) -> str:
    """The group that a key of `group_key` names."""
    return unquote(key.removeprefix(GROUPS))


def members_of_group(group_id: str) -> str:
    """What the keys of the members of a consumer group begin with."""
    return f"{MEMBERS}{quote(group_id, safe='')}/"


def member_key(group_id: str, member_id: str) -> str:
    """The key of a member of a consumer group."""
    return members_of_group(group_id) + quote(member_id, safe="")


def parse_member_key(key: str) -> tuple[str, str]:
    """The group and the member that a key of `member_key` names. Raises `ValueError` if it is not such a key."""
    group_id, member_id = key.removeprefix(MEMBERS).split("/")
    return unquote(group_id), unquote(member_id)


def scram_key(user: str) -> str:
    """The key of a user's SCRAM credentials."""
    return SCRAM + quote(user, safe="")


def parse_scram_key(key: str) -> str:
    """The user that a key of `scram_key` names."""
    return unquote(key.removeprefix(SCRAM))


def delegation_token_key(token_id: str) -> str:
    """The key of a delegation token's row."""
    return DELEGATION_TOKENS + quote(token_id, safe="")


def parse_delegation_token_key(key: str) -> str:
    """The id of the delegation token that a key of `delegation_token_key` names."""
    return unquote(key.removeprefix(DELEGATION_TOKENS))


def transaction_key(transactional_id: str) -> str:
    """The key of a transactional id's row."""
    return TRANSACTIONS + quote(transactional_id, safe="")


def parse_transaction_key(key: str) -> str:
    """The transactional id that a key of `transaction_key` names."""
    return unquote(key.removeprefix(TRANSACTIONS))


def offsets_of_group(group_id: str) -> str:
    """What the keys of a group's offsets begin with; `of_topic_offsets` follows, and the number of the partition."""
    return f"{OFFSETS}{quote(group_id, safe='')}/"


def of_topic_offsets(topic: str) -> str:
    """What names the topic in the keys of offsets."""
    return f"{quote(topic, safe='')}/"


def offset_key(group_id: str, partition: TopicPartition) -> str:
    """The key of a committed offset."""
    return f"{offsets_of_group(group_id)}{of_topic_offsets(partition.topic)}{partition.partition}"


def pending_key(group_id: str, transactional_id: str) -> str:
    """The key of what a transaction is to commit for a group."""
    return f"{PENDING}{quote(group_id, safe='')}/{quote(transactional_id, safe='')}"


def parse_pending_key(key: str) -> tuple[str, str]:
    """The group and the transactional id that a key of `pending_key` names. Raises `ValueError` if it is none."""
    group_id, transactional_id = key.removeprefix(PENDING).split("/")
    return unquote(group_id), unquote(transactional_id)


def longest_offset_key(group_id: str) -> int:
    """About how many bytes the key of an offset of a group has at most, for a topic whose name is not quoted."""
    return 3 * (len(group_id) if group_id.isascii() else len(group_id.encode())) + _NAMES


def parse_offset_key(key: str) -> tuple[str, TopicPartition]:
    """The group and the partition whose committed offset a key is for. Raises `ValueError` if it is not such a key."""
    group_id, topic, partition = key.removeprefix(OFFSETS).split("/")
    return unquote(group_id), TopicPartition(unquote(topic), parse_number(partition.encode(), 0, INT32_MAX))
