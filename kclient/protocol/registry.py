"""Which messages belong to which API, and which version of an API two sides speak."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from importlib import import_module

from kclient.errors import UnsupportedVersionError
from kclient.protocol.message import ApiMessage
from kclient.protocol.structs import Schema, schema_of
from kclient.protocol.versions import Versions


class ApiKey(IntEnum):
    """The APIs that brokers serve, by Kafka's names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92

    @property
    def family(self) -> str:
        """The module of `kclient.protocol.messages` that declares the API."""
        return _FAMILIES[self]

    @property
    def message_name(self) -> str:
        """Kafka's name of the API, as in the names of its messages: "Metadata"."""
        return self.name.title().replace("_", "")


_FAMILIES: dict[ApiKey, str] = {
    ApiKey.PRODUCE: "produce",
    ApiKey.FETCH: "fetch",
    ApiKey.LIST_OFFSETS: "fetch",
    ApiKey.METADATA: "metadata",
    ApiKey.OFFSET_COMMIT: "offsets",
    ApiKey.OFFSET_FETCH: "offsets",
    ApiKey.FIND_COORDINATOR: "groups",
    ApiKey.JOIN_GROUP: "groups",
    ApiKey.HEARTBEAT: "groups",
    ApiKey.LEAVE_GROUP: "groups",
    ApiKey.SYNC_GROUP: "groups",
    ApiKey.DESCRIBE_GROUPS: "groups",
    ApiKey.LIST_GROUPS: "groups",
    ApiKey.SASL_HANDSHAKE: "connection",
    ApiKey.API_VERSIONS: "connection",
    ApiKey.CREATE_TOPICS: "topics",
    ApiKey.DELETE_TOPICS: "topics",
    ApiKey.DELETE_RECORDS: "fetch",
    ApiKey.INIT_PRODUCER_ID: "produce",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "fetch",
    ApiKey.ADD_PARTITIONS_TO_TXN: "transactions",
    ApiKey.ADD_OFFSETS_TO_TXN: "transactions",
    ApiKey.END_TXN: "transactions",
    ApiKey.WRITE_TXN_MARKERS: "transactions",
    ApiKey.TXN_OFFSET_COMMIT: "transactions",
    ApiKey.DESCRIBE_ACLS: "acls",
    ApiKey.CREATE_ACLS: "acls",
    ApiKey.DELETE_ACLS: "acls",
    ApiKey.DESCRIBE_CONFIGS: "configs",
    ApiKey.ALTER_CONFIGS: "configs",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "replicas",
    ApiKey.DESCRIBE_LOG_DIRS: "replicas",
    ApiKey.SASL_AUTHENTICATE: "connection",
    ApiKey.CREATE_PARTITIONS: "topics",
    ApiKey.CREATE_DELEGATION_TOKEN: "tokens",
    ApiKey.RENEW_DELEGATION_TOKEN: "tokens",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "tokens",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "tokens",
    ApiKey.DELETE_GROUPS: "groups",
    ApiKey.ELECT_LEADERS: "replicas",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "configs",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "replicas",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "replicas",
    ApiKey.OFFSET_DELETE: "offsets",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "users",
    ApiKey.ALTER_CLIENT_QUOTAS: "users",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "users",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "users",
    ApiKey.DESCRIBE_QUORUM: "quorum",
    ApiKey.UPDATE_FEATURES: "quorum",
    ApiKey.DESCRIBE_CLUSTER: "metadata",
    ApiKey.DESCRIBE_PRODUCERS: "produce",
    ApiKey.UNREGISTER_BROKER: "quorum",
    ApiKey.DESCRIBE_TRANSACTIONS: "transactions",
    ApiKey.LIST_TRANSACTIONS: "transactions",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "consumer_groups",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "consumer_groups",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "telemetry",
    ApiKey.PUSH_TELEMETRY: "telemetry",
    ApiKey.LIST_CONFIG_RESOURCES: "configs",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "metadata",
    ApiKey.SHARE_GROUP_HEARTBEAT: "share",
    ApiKey.SHARE_GROUP_DESCRIBE: "share",
    ApiKey.SHARE_FETCH: "share",
    ApiKey.SHARE_ACKNOWLEDGE: "share",
    ApiKey.ADD_RAFT_VOTER: "quorum",
    ApiKey.REMOVE_RAFT_VOTER: "quorum",
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: "share_state",
    ApiKey.READ_SHARE_GROUP_STATE: "share_state",
    ApiKey.WRITE_SHARE_GROUP_STATE: "share_state",
    ApiKey.DELETE_SHARE_GROUP_STATE: "share_state",
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: "share_state",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "streams",
    ApiKey.STREAMS_GROUP_DESCRIBE: "streams",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "share",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "share",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "share",
}


@cache
def request_class(api_key: int) -> type[ApiMessage]:
    """The class of an API's requests.

    Raises:
        UnsupportedVersionError: If kclient does not know the API.
    """
    return _message_class(api_key, "Request")


@cache
def response_class(api_key: int) -> type[ApiMessage]:
    """The class of an API's responses.

    Raises:
        UnsupportedVersionError: If kclient does not know the API.
    """
    return _message_class(api_key, "Response")


def request_schema(api_key: int, version: int) -> Schema:
    """The schema of a request, for tools that read or print any of them as a generic struct.

    Raises:
        UnsupportedVersionError: If kclient does not know the API or the version.
    """
    return _schema(request_class(api_key), version)


def response_schema(api_key: int, version: int) -> Schema:
    """The schema of a response, for tools that read or print any of them as a generic struct.

    Raises:
        UnsupportedVersionError: If kclient does not know the API or the version.
    """
    return _schema(response_class(api_key), version)


def negotiate(api_key: int, broker_ranges: Mapping[int, tuple[int, int]], ours: tuple[int, int] | None = None) -> int:
    """The highest version of an API that both sides know.

    Both ranges are clipped to the versions that kclient has: what a newer broker serves beyond them, or `ours` names
    beyond them, is never the answer, and no error either, as long as a version is left.

    Args:
        api_key: The API.
        broker_ranges: What the broker said it serves: lowest and highest version by API.
        ours: What this side may use; else all that kclient has.

    Raises:
        UnsupportedVersionError: If no version is left (the text names both ranges), or kclient or the broker does not
            have the API.
    """
    known = request_class(api_key).VERSIONS
    mine = known & Versions(*ours) if ours else known
    if not mine:
        asked = Versions(*ours or known)
        raise UnsupportedVersionError(
            f"kclient knows {_name(api_key)} in versions {known}, but was told to use {asked}"
        )
    name = _name(api_key)
    if api_key not in broker_ranges:
        raise UnsupportedVersionError(f"the broker does not have the API {name} (kclient would use {mine})")
    theirs = Versions(*broker_ranges[api_key])
    common = mine & theirs
    if not common:
        raise UnsupportedVersionError(
            f"no common version of {name}: kclient can use {mine}, the broker serves {theirs}"
        )
    return common.high


def _message_class(api_key: int, kind: str) -> type[ApiMessage]:
    try:
        key = ApiKey(api_key)
    except ValueError:
        raise UnsupportedVersionError(f"kclient does not know an API with key {api_key}") from None
    module = import_module(f"kclient.protocol.messages.{key.family}")
    found: type[ApiMessage] = getattr(module, f"{key.message_name}{kind}")
    return found


def _schema(message: type[ApiMessage], version: int) -> Schema:
    if version not in message.VERSIONS:
        raise UnsupportedVersionError(
            f"kclient knows {message.__name__} in versions {message.VERSIONS}, not in version {version!r}"
        )
    return schema_of(message, version)


def _name(api_key: int) -> str:
    try:
        return ApiKey(api_key).name
    except ValueError:
        return str(api_key)
