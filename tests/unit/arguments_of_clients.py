"""Every public call of the clients, and what its arguments are when they are right, or nearly so."""

from __future__ import annotations

import inspect
import re
from typing import Any, NamedTuple

import pyarrow
from hypothesis import strategies as st

import kclient
import kclient.sync
from kclient import (
    AcknowledgeType,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    ConsumerRecord,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    RebalanceListener,
    TopicPartition,
)
from kclient.admin import (
    AbortTransactionSpec,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    ClientQuotaEntity,
    ClientQuotaFilter,
    ElectionType,
    FeatureUpdate,
    PatternType,
    RaftVoterEndpoint,
    ResourceType,
    ScramMechanism,
    TopicIds,
    UpgradeType,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kclient.arguments import shown
from kclient.config.secret import Secret
from kclient.metrics import Metric, MetricName
from kclient.types import ConsumerGroupMetadata
from tests.hostile_values import edges, floats, numbers, odd, scalars, texts

Arguments = dict[str, st.SearchStrategy[Any]]

TOPICS = ["t", "u"]
"""These exist, with two partitions; the first has records."""

topic = st.sampled_from(TOPICS)
partition = st.builds(TopicPartition, topic, st.integers(0, 1)) | st.tuples(topic, st.integers(0, 1))
nearly_partition = partition | st.builds(TopicPartition, topic | texts, edges) | st.tuples(scalars, scalars)
partitions = st.lists(partition, max_size=3) | st.lists(partition, max_size=3).map(iter)
nearly_partitions = st.lists(nearly_partition, max_size=3)
offset = st.integers(0, 5) | st.builds(OffsetAndMetadata, st.integers(0, 5), st.text(max_size=3))
nearly_offset = offset | edges | st.builds(OffsetAndMetadata, scalars, texts | scalars, st.none() | edges | scalars)
offsets = st.dictionaries(partition, offset, max_size=3)
nearly_offsets = st.dictionaries(partition | st.tuples(texts, edges), nearly_offset, max_size=3)
short = st.sampled_from([0, 0.05, 0.1])
"""Times that a call may wait for without the test's noticing."""
nearly_timeout = st.sampled_from([-1, -0.0, float("nan"), -1e308, True, "1", 10**400])
group = st.sampled_from(["g", "h"])
configs = st.dictionaries(
    st.sampled_from(["retention.ms", "cleanup.policy"]), st.sampled_from(["1", "delete"]), max_size=2
)
nearly_configs = st.dictionaries(texts | scalars.filter(lambda value: _can_hash(value)), scalars, max_size=2)
new_topic = st.builds(NewTopic, st.just("made"), st.integers(1, 3))
counts = st.sampled_from([-1, 0, 3, 2**31, -(2**31), "4", None, 1.5, True])
nearly_new_topic = st.builds(
    NewTopic, texts | scalars, counts, st.sampled_from([-1, 1, 7, 2**16, None]),
    nearly_configs | scalars, st.none() | st.dictionaries(edges, st.lists(edges, max_size=2), max_size=2) | scalars,
)  # fmt: skip
resource = st.builds(ConfigResource, st.sampled_from(list(ConfigResourceType)), st.sampled_from([*TOPICS, "1"]))
nearly_resource = st.builds(ConfigResource, st.sampled_from(list(ConfigResourceType)) | scalars, texts | scalars)
change = st.tuples(st.sampled_from(list(ConfigOperation)), st.sampled_from(["1", None]))
other_texts = texts.filter(lambda text: text not in TOPICS)
acl = st.builds(
    AclBinding, resource_type=st.sampled_from([ResourceType.TOPIC, ResourceType.UNKNOWN]), resource_name=topic,
    principal=st.just("User:a"), operation=st.sampled_from(AclOperation.known()),
)  # fmt: skip
acl_filter = st.builds(
    AclBindingFilter, resource_name=st.none() | topic, pattern_type=st.sampled_from(list(PatternType)[1:])
)
alteration = st.builds(
    UserScramCredentialDeletion, user=st.sampled_from(["a", "b"]), mechanism=st.just(ScramMechanism.SCRAM_SHA_256)
) | st.builds(
    UserScramCredentialUpsertion, user=st.just("c"), mechanism=st.just(ScramMechanism.SCRAM_SHA_512),
    password=st.just("p"),
)  # fmt: skip
entity = st.builds(ClientQuotaEntity, user=st.sampled_from(["a", "b"]))
quota_filter = st.builds(ClientQuotaFilter, user=st.none() | st.just("a"), strict=st.booleans())
rates = st.dictionaries(st.sampled_from(["producer_byte_rate", "x"]), st.none() | st.floats(1, 9), max_size=2)
replica = st.tuples(topic, st.integers(0, 3), st.integers(0, 2))
nearly_replica = st.tuples(texts | scalars, edges | scalars, edges | scalars) | scalars
endpoint = st.builds(RaftVoterEndpoint, st.sampled_from(["CONTROLLER", "X"]), st.just("localhost"), st.just(9093))
place = st.sampled_from(list(OffsetSpec)) | st.integers(0, 10)
topic_ids = st.builds(TopicIds, st.lists(st.just("3Db5QLSqSZieL3rJBUUegA"), max_size=1))
resource_types = list(ConfigResourceType)


def _can_hash(value: Any) -> bool:
    try:
        hash(value)
    except Exception:
        return False
    return True


def listener() -> RebalanceListener:
    return RebalanceListener()


# What is right, and what is nearly right, by the name of the parameter.
RIGHT: Arguments = {
    "acknowledge_type": st.sampled_from(AcknowledgeType),
    "batch": st.builds(lambda: pyarrow.RecordBatch.from_pydict({"topic": ["t"], "partition": [0], "offset": [0]})),
    "record": st.builds(lambda: ConsumerRecord("t", 0, 0, 0, 0, None, None)),
    "records": st.lists(st.builds(lambda: ConsumerRecord("t", 0, 0, 0, 0, None, None)), min_size=1, max_size=2),
    "leave_group": st.none() | st.booleans(),
    "max_records": st.none() | st.integers(1, 10**6),
    "brokers": st.none() | st.lists(st.integers(0, 2), max_size=2),
    "cluster_id": st.none() | st.just("a"),
    "directories": st.dictionaries(replica, st.just("/d"), max_size=2),
    "directory_id": st.just("3Db5QLSqSZieL3rJBUUegA"),
    "endpoints": st.lists(endpoint, min_size=1, max_size=1),
    "replicas": st.lists(replica, max_size=2),
    "voter_id": st.integers(0, 3),
    "wait_for_commit": st.booleans(),
    "expiry_period_ms": st.none() | st.integers(0, 1000),
    "hmac": st.just("c2VjcmV0") | st.builds(Secret, st.just("c2VjcmV0")),
    "max_lifetime_ms": st.none() | st.integers(1, 1000),
    "owner": st.none() | st.just("User:a"),
    "owners": st.none() | st.lists(st.just("User:a"), max_size=1),
    "renew_period_ms": st.none() | st.integers(1, 1000),
    "renewers": st.lists(st.sampled_from(["User:a", "User:b"]), max_size=2),
    "quota_filter": st.none() | quota_filter,
    "quotas": st.dictionaries(entity, rates, max_size=2),
    "alterations": st.lists(alteration, max_size=1),
    "users": st.none() | st.lists(st.sampled_from(["a", "b"]), max_size=2),
    "acl_filter": st.none() | acl_filter,
    "acls": st.lists(acl, max_size=2),
    "before": st.dictionaries(partition, st.integers(-1, 3), max_size=2),
    "broker_id": st.integers(0, 2),
    "callback": st.none() | st.just(lambda offsets, error: None),
    "changes": st.dictionaries(resource, st.dictionaries(st.just("retention.ms"), change, max_size=1), max_size=1),
    "columns": st.none() | st.lists(st.sampled_from(["key", "offset"]), min_size=1, unique=True),
    "configs": configs,
    "data": st.none(),
    "dry_run": st.booleans(),
    "filters": st.lists(acl_filter, max_size=2),
    "group_id": group,
    "group_ids": st.lists(group, max_size=2),
    "group_metadata": st.builds(ConsumerGroupMetadata, group),
    "headers": st.lists(st.tuples(st.text("abc"), st.binary(max_size=3) | st.none()), max_size=2),
    "max_bytes": st.none() | st.integers(1, 10**6),
    "metric": st.builds(lambda: Metric(MetricName("n", "g"), lambda: 1.0)),
    "max_transaction_timeout_ms": st.integers(0, 10**6),
    "min_duration_ms": st.none() | st.integers(0, 1000),
    "producer_ids": st.lists(st.integers(0, 10), max_size=2),
    "spec": st.builds(AbortTransactionSpec, partition, st.integers(0, 10), st.integers(0, 3), st.just(0)),
    "transactional_id": st.text("xy", min_size=1, max_size=2),
    "transactional_id_pattern": st.none() | st.just("x.*"),
    "transactional_ids": st.lists(st.text("xy", min_size=1, max_size=2), max_size=2),
    "include_authorized_operations": st.booleans(),
    "include_documentation": st.booleans(),
    "include_fenced_brokers": st.booleans(),
    "include_headers": st.booleans(),
    "include_internal": st.booleans(),
    "include_synonyms": st.booleans(),
    "key": st.none() | st.binary(max_size=5),
    "keys": st.none() | st.just([b"k", None]),
    "listener": st.none() | st.builds(listener),
    "members": st.none() | st.lists(st.just("one"), max_size=1),
    "name": st.just("made"),
    "names": st.lists(st.just("made"), max_size=1),
    "offset": offset,
    "offsets": offsets,
    "on_delivery": st.none() | st.just(lambda metadata, error: None),
    "partition": partition,
    "partitions": partitions,
    "reason": st.text(max_size=5),
    "replication_factor": st.sampled_from([-1, 1]),
    "resources": st.lists(resource, max_size=2),
    "retry_on_quota_violation": st.booleans(),
    "states": st.lists(st.sampled_from(["Stable", "Empty"]), max_size=1),
    "target": place | offsets,
    "timeout": short | st.none(),
    "timestamp": st.none() | st.integers(0, 10**12),
    "timestamps": st.dictionaries(partition, st.integers(0, 10**13), max_size=2),
    "topic": topic,
    "topics": st.lists(topic, max_size=2),
    "totals": st.dictionaries(topic, st.integers(1, 3), max_size=1),
    "types": st.lists(st.sampled_from(["classic", "consumer"]), max_size=1),
    "assignments": st.none(),
    "allow_replication_factor_change": st.booleans(),
    "election_type": st.sampled_from(ElectionType),
    "reassignments": st.dictionaries(partition, st.none() | st.lists(st.integers(0, 3), max_size=2), max_size=2),
    "updates": st.dictionaries(
        st.just("transaction.version"),
        st.builds(FeatureUpdate, st.integers(1, 2), st.sampled_from(UpgradeType)),
        min_size=1,
        max_size=1,
    ),
    "require_stable": st.booleans(),
    "validate_only": st.booleans(),
    "value": st.none() | st.binary(max_size=20),
    "values": st.just([b"v", None]) | st.builds(lambda: iter([b"v", b"w"])),
    "wanted": st.dictionaries(partition, place, max_size=2),
}  # fmt: skip
NEARLY: Arguments = {
    "acknowledge_type": st.integers(0, 5),
    "batch": st.builds(lambda: pyarrow.RecordBatch.from_pydict({"topic": [None]})),
    "record": st.lists(scalars, max_size=2),
    "records": st.lists(scalars, max_size=2) | scalars,
    "wait_for_commit": scalars,
    "leave_group": st.integers() | scalars,
    "max_records": edges | scalars,
    "brokers": st.lists(edges | scalars, max_size=2) | texts,
    "cluster_id": texts,
    "directories": st.dictionaries(nearly_replica.filter(lambda value: _can_hash(value)), texts | scalars, max_size=2),
    "directory_id": texts,
    "endpoints": st.lists(endpoint | scalars, max_size=3) | endpoint,
    "replicas": st.lists(nearly_replica, max_size=2) | nearly_replica,
    "voter_id": edges,
    "assignments": st.dictionaries(
        texts | edges, st.lists(st.lists(edges, max_size=2) | scalars, max_size=2), max_size=2
    ),
    "expiry_period_ms": edges,
    "hmac": texts,
    "max_lifetime_ms": edges,
    "owner": texts,
    "owners": st.lists(texts | scalars, max_size=2) | texts,
    "renew_period_ms": edges,
    "renewers": st.lists(texts | scalars, max_size=2) | texts,
    "acl_filter": acl | scalars,
    "quota_filter": entity | scalars,
    "quotas": st.dictionaries(
        entity | texts, st.dictionaries(texts, numbers | texts, max_size=2) | scalars, max_size=2
    ),
    "alterations": st.lists(alteration | scalars, max_size=3) | alteration,
    "users": st.lists(texts | scalars, max_size=2) | texts,
    "acls": st.lists(acl | acl_filter | scalars, max_size=2) | acl,
    "broker_id": edges,
    "filters": st.lists(acl_filter | acl | scalars, max_size=2) | acl_filter,
    "max_bytes": edges | scalars,
    "metric": scalars | st.builds(lambda: MetricName("n", "g")),
    "max_transaction_timeout_ms": edges,
    "min_duration_ms": edges,
    "producer_ids": st.lists(edges | scalars, max_size=2),
    "spec": st.builds(AbortTransactionSpec, nearly_partition, edges | scalars, edges | scalars, edges | scalars),
    "transactional_id": texts,
    "transactional_id_pattern": texts,
    "transactional_ids": st.lists(texts, max_size=2),
    "before": nearly_offsets | st.dictionaries(partition, numbers, max_size=2),
    "changes": st.dictionaries(nearly_resource.filter(_can_hash), nearly_configs | scalars, max_size=2),
    "columns": st.lists(texts | scalars, max_size=2) | texts,
    "configs": nearly_configs,
    "group_id": texts,
    "group_ids": st.lists(texts, max_size=2),
    "group_metadata": st.builds(
        ConsumerGroupMetadata, texts | scalars, edges | scalars, texts | scalars, st.none() | texts | scalars
    ),
    "headers": st.lists(st.tuples(texts | scalars, scalars), max_size=2) | st.lists(scalars, max_size=2),
    "name": texts,
    "names": st.lists(texts, max_size=2),
    "offset": nearly_offset,
    "offsets": nearly_offsets,
    "partition": nearly_partition,
    "partitions": nearly_partitions,
    "members": st.lists(texts | scalars, max_size=2) | texts,
    "reason": texts,
    "reassignments": st.dictionaries(
        partition | st.tuples(texts, edges), st.lists(edges | scalars, max_size=2) | scalars, max_size=2
    ),
    "replication_factor": edges,
    "resources": st.lists(nearly_resource, max_size=2),
    "states": st.lists(texts, max_size=2),
    "target": nearly_offsets | numbers,
    "timeout": nearly_timeout,
    "timestamp": edges | floats,
    "timestamps": st.dictionaries(partition | st.tuples(texts, edges), numbers, max_size=2),
    "topic": texts,
    "topics": st.lists(texts, max_size=2) | texts | st.just(re.compile("t.*")),
    "totals": st.dictionaries(texts, counts, max_size=2),
    "types": st.lists(texts, max_size=2),
    "updates": st.dictionaries(
        (texts | scalars).filter(_can_hash), st.builds(FeatureUpdate, st.integers(1, 32767)) | scalars, max_size=2
    ),
    "wanted": st.dictionaries(partition | st.tuples(texts, edges), numbers | scalars, max_size=2),
}
# Where the same name means something else: (method, parameter).
OVERRIDES: dict[tuple[str, str], tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]] = {
    ("send", "partition"): (st.none() | st.integers(0, 1), edges | scalars),
    ("send_batch", "partition"): (st.none() | st.integers(0, 1), edges | scalars),
    ("create_topic", "partitions"): (st.integers(1, 3), counts),
    ("create_topics", "topics"): (st.lists(new_topic, max_size=2), st.lists(nearly_new_topic, max_size=2)),
    ("reset_group_offsets", "partitions"): (st.none() | partitions, nearly_partitions),
    ("elect_leaders", "partitions"): (st.none() | partitions, nearly_partitions),
    ("list_partition_reassignments", "partitions"): (st.none() | partitions, nearly_partitions),
    ("list_group_offsets", "partitions"): (st.none() | partitions, nearly_partitions),
    ("list_transactions", "states"): (st.lists(st.just("Ongoing"), max_size=1), st.lists(texts, max_size=2)),
    ("describe_producers", "partitions"): (st.lists(st.tuples(topic, st.just(0)), max_size=1), nearly_partitions),
    ("find_hanging_transactions", "partitions"): (st.none() | partitions, nearly_partitions),
    ("describe_topics", "names"): (st.lists(st.just("made"), max_size=1) | topic_ids, st.lists(texts, max_size=2)),
    ("describe_topics", "partition_size_limit_per_response"): (st.integers(1, 9), counts),
    ("describe_configs", "names"): (st.none() | st.lists(st.just("retention.ms")), st.lists(texts, max_size=2)),
    ("list_config_resources", "types"): (
        st.none() | st.lists(st.sampled_from(resource_types), max_size=2),
        st.lists(st.sampled_from(resource_types) | scalars, max_size=2) | st.sampled_from(resource_types),
    ),
    ("list_share_group_offsets", "partitions"): (st.none() | partitions, nearly_partitions),
    ("delete_topics", "names"): (st.lists(st.just("made"), max_size=1), st.lists(other_texts, max_size=2)),
    ("delete_topic", "name"): (st.just("made"), other_texts),
    ("acknowledge_offset", "offset"): (st.integers(0, 5), edges | scalars),
    ("poll", "timeout"): (short, nearly_timeout),
    ("poll_arrow", "timeout"): (short, nearly_timeout),
}  # fmt: skip

LEFT_OUT = {"start", "close"}
"""What begins and ends the object that all the other calls are made on; `close` has tests of its own."""


def public_calls(client: type) -> list[str]:
    """The names of the public methods."""
    return [name for name in dir(client) if not name.startswith("_") and callable(getattr(client, name))]


def parameters(client: type, method: str) -> list[str]:
    """The names of a method's parameters."""
    return [name for name in inspect.signature(getattr(client, method)).parameters if name != "self"]


def argument(method: str, name: str) -> st.SearchStrategy[Any]:
    """A wrong argument: one that is nearly right, or anything."""
    _, nearly = OVERRIDES.get((method, name), (None, NEARLY.get(name)))
    anything = odd if name not in ("timeout", "names", "name") else odd.filter(_harmless)
    return anything if nearly is None else nearly | anything


def _harmless(value: Any) -> bool:
    """Whether it neither means to wait for long nor names the topics that the others need."""
    if type(value) in (int, float):
        return not value > 0.2
    items = value if type(value) in (list, tuple, set, frozenset) else [value]
    return not any(isinstance(item, str) and any(str.__eq__(item, topic) for topic in TOPICS) for item in items)


def right(method: str, name: str) -> st.SearchStrategy[Any]:
    """An argument that is right."""
    return OVERRIDES[method, name][0] if (method, name) in OVERRIDES else RIGHT[name]


class Call(NamedTuple):
    """A method with its arguments."""

    method: str
    given: dict[str, Any]

    def __repr__(self) -> str:
        return f"{self.method}({', '.join(f'{name}={shown(value)}' for name, value in self.given.items())})"


@st.composite
def calls(draw: Any, client: type) -> Call:
    """A method and its arguments, of which one at least is wrong."""
    method = draw(st.sampled_from([name for name in public_calls(client) if name not in LEFT_OUT]))
    names = parameters(client, method)
    if not names:
        return Call(method, {})
    wrong = set(draw(st.lists(st.sampled_from(names), min_size=1, max_size=2)))
    given = {}
    for name in names:
        if name in wrong:
            given[name] = draw(argument(method, name))
        elif draw(st.booleans()) or _required(client, method, name):
            given[name] = draw(right(method, name))
    return Call(method, given)


def _required(client: type, method: str, name: str) -> bool:
    return inspect.signature(getattr(client, method)).parameters[name].default is inspect.Parameter.empty


CLIENTS: dict[str, type] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (kclient, kclient.sync)
    for name in ("Admin", "Consumer", "Producer", "ShareConsumer")
}
