"""The admin client for blocking code: each call crosses to the portal once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

from kclient.admin import (
    AbortTransactionSpec,
    AclBinding,
    AclBindingFilter,
    ActiveProducer,
    ClientQuotaEntity,
    ClientQuotaFilter,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    DelegationToken,
    ElectionType,
    FeatureMetadata,
    FeatureUpdate,
    FencedProducer,
    GroupDescription,
    GroupListing,
    HangingTransaction,
    Listing,
    LogDirDescription,
    NewTopic,
    OffsetReset,
    OffsetSpec,
    PartitionLag,
    PartitionReassignment,
    QuorumInfo,
    RaftVoterEndpoint,
    ReplicaLogDirInfo,
    ScramCredentialInfo,
    SharePartitionOffset,
    TopicDescription,
    TopicIds,
    TopicListing,
    TopicPartitionReplica,
    TransactionDescription,
    TransactionListing,
)
from kclient.admin import Admin as AsyncAdmin
from kclient.admin.arguments import Change
from kclient.admin.log_dir_types import Replica
from kclient.admin.topics import OffsetSpecs
from kclient.admin.transactions import MAX_TRANSACTION_TIMEOUT_MS
from kclient.admin.user_types import UserScramCredentialAlteration
from kclient.arguments import AS_LONG_AS_IT_TAKES, check_timeout
from kclient.cluster.own_metrics import OwnMetrics
from kclient.config import ConfigInput
from kclient.config.secret import Secret
from kclient.errors import KafkaError
from kclient.metrics.metric import Metrics
from kclient.metrics.registry import MetricsRegistry
from kclient.sync.beginning import Beginning, StartedByWith
from kclient.types import OffsetAndMetadata, OffsetAndTimestamp, Offsets, Partition, TopicPartition, WholeNumbers
from kclient.unclosed import finalizer

T = TypeVar("T")


class Admin(StartedByWith, OwnMetrics):
    """Topics, groups, settings, ACLs, transactions: create, describe, alter, delete. For blocking code; thread-safe.

    The calls are those of `kclient.Admin`, which documents them, without `await`. Use it with `with`; without, it
    starts with the first call and has to be closed in the end.

    Args:
        config: Settings under Kafka's names: a mapping, or a properties file (its text or path).
        settings: Settings as arguments in snake_case; they win.

    Raises:
        ConfigError: A setting is unknown or wrong.
    """

    def __init__(self, config: ConfigInput = None, /, **settings: Any) -> None:
        self._admin = AsyncAdmin(config, **settings)
        self._beginning = Beginning("admin client", self._admin.start)

    def __repr__(self) -> str:
        return f"<sync.{repr(self._admin)[1:]}" if hasattr(self, "_admin") else "<sync.Admin, not made>"

    @finalizer
    def __del__(self) -> None:
        if hasattr(self, "_admin"):
            self._admin._forgotten(self, "`with`, or `admin.close()`")

    def start(self) -> None:
        """Makes the client ready; `with` and the first call do it."""
        self._beginning.running()

    def close(self, timeout: float | None = None) -> None:
        """Closes the connections. May be called again, and then waits until it is closed.

        In a forked child it leaves the parent's client alone.
        """
        check_timeout(timeout, AS_LONG_AS_IT_TAKES)
        if self._beginning.elsewhere:
            return
        portal = self._beginning.end()
        if portal is not None:
            portal.call(self._admin.close, timeout)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def client_instance_id(self, timeout: float | None = None) -> UUID:
        """The id that the cluster knows this client by (KIP-714); see `kclient.Admin.client_instance_id`."""
        return self._call(self._admin.client_instance_id, timeout)

    def _metrics_registry(self) -> MetricsRegistry:
        self._beginning.check_here()
        return self._admin._metrics_registry()

    def metrics(self) -> Metrics:
        """The metrics under the names, groups and tags of the Java client's; see `kclient.Admin.metrics`."""
        self._beginning.check_here()
        return self._admin.metrics()

    def _call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        return self._beginning.running().call(function, *args, **kwargs)

    def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        retry_on_quota_violation: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Creates topics."""
        self._call(
            self._admin.create_topics,
            topics,
            validate_only=validate_only,
            retry_on_quota_violation=retry_on_quota_violation,
            timeout=timeout,
        )

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str | None] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Creates one topic; see `NewTopic` and `create_topics`."""
        self._call(self._admin.create_topic, name, partitions, replication_factor, configs, timeout=timeout)

    def delete_topics(
        self, names: Collection[str], *, retry_on_quota_violation: bool = True, timeout: float | None = None
    ) -> None:
        """Deletes topics and everything in them."""
        self._call(self._admin.delete_topics, names, retry_on_quota_violation=retry_on_quota_violation, timeout=timeout)

    def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Deletes one topic; see `delete_topics`."""
        self._call(self._admin.delete_topic, name, timeout=timeout)

    def list_topics(self, *, include_internal: bool = False, timeout: float | None = None) -> list[TopicListing]:
        """Every topic of the cluster, sorted by name."""
        return self._call(self._admin.list_topics, include_internal=include_internal, timeout=timeout)

    def describe_topics(
        self,
        names: Collection[str] | TopicIds,
        *,
        include_authorized_operations: bool = False,
        partition_size_limit_per_response: int = 2000,
        timeout: float | None = None,
    ) -> dict[str, TopicDescription]:
        """Topics with their partitions, leaders and replicas."""
        return self._call(
            self._admin.describe_topics,
            names,
            include_authorized_operations=include_authorized_operations,
            partition_size_limit_per_response=partition_size_limit_per_response,
            timeout=timeout,
        )

    def create_partitions(
        self,
        totals: Mapping[str, int],
        *,
        assignments: Mapping[str, list[list[int]]] | None = None,
        validate_only: bool = False,
        retry_on_quota_violation: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Gives topics more partitions."""
        self._call(
            self._admin.create_partitions,
            totals,
            assignments=assignments,
            validate_only=validate_only,
            retry_on_quota_violation=retry_on_quota_violation,
            timeout=timeout,
        )

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None] | Mapping[tuple[str, int], Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Has partitions move to other brokers; returns once that has begun (KIP-455)."""
        self._call(
            self._admin.alter_partition_reassignments,
            reassignments,
            allow_replication_factor_change=allow_replication_factor_change,
            timeout=timeout,
        )

    def list_partition_reassignments(
        self, partitions: Iterable[Partition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The moves that are under way (KIP-455)."""
        return self._call(self._admin.list_partition_reassignments, partitions, timeout=timeout)

    def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: Iterable[Partition] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Has partitions led by their preferred replica, or by one that is not in sync where no other is left."""
        return self._call(self._admin.elect_leaders, election_type, partitions, timeout=timeout)

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        min_duration_ms: int | None = None,
        transactional_id_pattern: str | None = None,
        timeout: float | None = None,
    ) -> Listing[TransactionListing]:
        """Every transactional id that a coordinator knows, sorted by name (KIP-664)."""
        return self._call(
            self._admin.list_transactions,
            states=states,
            producer_ids=producer_ids,
            min_duration_ms=min_duration_ms,
            transactional_id_pattern=transactional_id_pattern,
            timeout=timeout,
        )

    def describe_transactions(
        self, transactional_ids: Collection[str], *, timeout: float | None = None
    ) -> dict[str, TransactionDescription]:
        """The state of transactional ids: their producer, and the partitions of the present transaction (KIP-664)."""
        return self._call(self._admin.describe_transactions, transactional_ids, timeout=timeout)

    def describe_producers(
        self, partitions: Iterable[Partition], *, broker_id: int | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
        """The producers that partitions remember, and where their open transactions begin (KIP-664)."""
        return self._call(self._admin.describe_producers, partitions, broker_id=broker_id, timeout=timeout)

    def abort_transaction(self, spec: AbortTransactionSpec, *, timeout: float | None = None) -> None:
        """Ends an open transaction of one partition by a marker that aborts it, past any coordinator (KIP-664)."""
        self._call(self._admin.abort_transaction, spec, timeout=timeout)

    def find_hanging_transactions(
        self,
        partitions: Iterable[Partition] | None = None,
        *,
        max_transaction_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
        timeout: float | None = None,
    ) -> list[HangingTransaction]:
        """Open transactions that no coordinator knows (any more), as Kafka's own tool finds them (KIP-664)."""
        return self._call(
            self._admin.find_hanging_transactions,
            partitions,
            max_transaction_timeout_ms=max_transaction_timeout_ms,
            timeout=timeout,
        )

    def fence_producers(
        self, transactional_ids: Collection[str], *, timeout: float | None = None
    ) -> dict[str, FencedProducer]:
        """Shuts out all producers that use these transactional ids now; their open transactions are aborted."""
        return self._call(self._admin.fence_producers, transactional_ids, timeout=timeout)

    def force_terminate_transaction(self, transactional_id: str, *, timeout: float | None = None) -> None:
        """Aborts the open transaction of a transactional id, also a prepared one (KIP-939); fences its producers."""
        self._call(self._admin.force_terminate_transaction, transactional_id, timeout=timeout)

    def describe_features(self, *, broker_id: int | None = None, timeout: float | None = None) -> FeatureMetadata:
        """The features of the cluster, and which levels a broker can do (KIP-584)."""
        return self._call(self._admin.describe_features, broker_id=broker_id, timeout=timeout)

    def update_features(
        self, updates: Mapping[str, FeatureUpdate], *, validate_only: bool = False, timeout: float | None = None
    ) -> None:
        """Changes the levels of features, all of them or none (KIP-584)."""
        self._call(self._admin.update_features, updates, validate_only=validate_only, timeout=timeout)

    def describe_acls(
        self, acl_filter: AclBindingFilter | None = None, *, timeout: float | None = None
    ) -> list[AclBinding]:
        """The entries of access control lists that a filter finds (KIP-140)."""
        return self._call(self._admin.describe_acls, acl_filter, timeout=timeout)

    def create_acls(self, acls: Iterable[AclBinding], *, timeout: float | None = None) -> None:
        """Adds entries to access control lists (KIP-140)."""
        self._call(self._admin.create_acls, acls, timeout=timeout)

    def delete_acls(
        self, filters: Iterable[AclBindingFilter], *, timeout: float | None = None
    ) -> dict[AclBindingFilter, list[AclBinding]]:
        """Removes the entries of access control lists that filters find, and returns them (KIP-140)."""
        return self._call(self._admin.delete_acls, filters, timeout=timeout)

    def describe_user_scram_credentials(
        self, users: Collection[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, list[ScramCredentialInfo]]:
        """The SCRAM credentials that users have, by name; never the passwords (KIP-554)."""
        return self._call(self._admin.describe_user_scram_credentials, users, timeout=timeout)

    def alter_user_scram_credentials(
        self, alterations: Iterable[UserScramCredentialAlteration], *, timeout: float | None = None
    ) -> None:
        """Adds, replaces and deletes SCRAM credentials (KIP-554)."""
        self._call(self._admin.alter_user_scram_credentials, alterations, timeout=timeout)

    def describe_client_quotas(
        self, quota_filter: ClientQuotaFilter | None = None, *, timeout: float | None = None
    ) -> dict[ClientQuotaEntity, dict[str, float]]:
        """The quotas that a filter finds: numbers by name, of each entity (KIP-546)."""
        return self._call(self._admin.describe_client_quotas, quota_filter, timeout=timeout)

    def alter_client_quotas(
        self,
        quotas: Mapping[ClientQuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Sets and removes quotas, and leaves the others as they are (KIP-546)."""
        self._call(self._admin.alter_client_quotas, quotas, validate_only=validate_only, timeout=timeout)

    def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        max_lifetime_ms: int | None = None,
        timeout: float | None = None,
    ) -> DelegationToken:
        """Makes a token with which others can log in as its owner (KIP-48)."""
        return self._call(
            self._admin.create_delegation_token,
            owner=owner,
            renewers=renewers,
            max_lifetime_ms=max_lifetime_ms,
            timeout=timeout,
        )

    def renew_delegation_token(
        self, hmac: Secret | str, *, renew_period_ms: int | None = None, timeout: float | None = None
    ) -> int:
        """Has a token end later, never after its `max_timestamp` (KIP-48); returns when, in milliseconds since 1970."""
        return self._call(self._admin.renew_delegation_token, hmac, renew_period_ms=renew_period_ms, timeout=timeout)

    def expire_delegation_token(
        self, hmac: Secret | str, *, expiry_period_ms: int | None = None, timeout: float | None = None
    ) -> int:
        """Has a token end sooner, or at once (KIP-48); returns when, in milliseconds since 1970."""
        return self._call(self._admin.expire_delegation_token, hmac, expiry_period_ms=expiry_period_ms, timeout=timeout)

    def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> list[DelegationToken]:
        """The tokens that this user may see, with their HMACs: who sees one can log in with it (KIP-48)."""
        return self._call(self._admin.describe_delegation_tokens, owners, timeout=timeout)

    def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        *,
        partitions: Iterable[Partition] | None = None,
        timeout: float | None = None,
    ) -> Listing[LogDirDescription]:
        """The log directories of brokers, and the replicas in them with their sizes (KIP-113)."""
        return self._call(self._admin.describe_log_dirs, brokers, partitions=partitions, timeout=timeout)

    def describe_replica_log_dirs(
        self, replicas: Iterable[Replica], *, timeout: float | None = None
    ) -> dict[TopicPartitionReplica, ReplicaLogDirInfo]:
        """In which log directories replicas are, and to which they are being moved (KIP-113)."""
        return self._call(self._admin.describe_replica_log_dirs, replicas, timeout=timeout)

    def alter_replica_log_dirs(
        self,
        directories: Mapping[TopicPartitionReplica, str] | Mapping[tuple[str, int, int], str],
        *,
        timeout: float | None = None,
    ) -> None:
        """Has replicas move to other log directories of their brokers (KIP-113)."""
        self._call(self._admin.alter_replica_log_dirs, directories, timeout=timeout)

    def describe_metadata_quorum(self, *, timeout: float | None = None) -> QuorumInfo:
        """The active controller, the voters, and how far each has the cluster's metadata (KIP-595)."""
        return self._call(self._admin.describe_metadata_quorum, timeout=timeout)

    def add_raft_voter(
        self,
        voter_id: int,
        directory_id: str,
        endpoints: Iterable[RaftVoterEndpoint],
        *,
        cluster_id: str | None = None,
        wait_for_commit: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Makes a controller that follows a voter of the quorum (KIP-853)."""
        self._call(
            self._admin.add_raft_voter,
            voter_id,
            directory_id,
            endpoints,
            cluster_id=cluster_id,
            wait_for_commit=wait_for_commit,
            timeout=timeout,
        )

    def remove_raft_voter(
        self, voter_id: int, directory_id: str, *, cluster_id: str | None = None, timeout: float | None = None
    ) -> None:
        """Has a controller be no voter of the quorum any more (KIP-853)."""
        self._call(self._admin.remove_raft_voter, voter_id, directory_id, cluster_id=cluster_id, timeout=timeout)

    def unregister_broker(self, broker_id: int, *, timeout: float | None = None) -> None:
        """Has the cluster forget a broker that will not return (KIP-631)."""
        self._call(self._admin.unregister_broker, broker_id, timeout=timeout)

    def delete_records(self, before: WholeNumbers, *, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Deletes the records before an offset of each partition (−1: all of them); returns the logs' new starts."""
        return self._call(self._admin.delete_records, before, timeout=timeout)

    def list_offsets(
        self, wanted: OffsetSpecs, *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The offset of a place in each partition: an `OffsetSpec`, or a timestamp in milliseconds."""
        return self._call(self._admin.list_offsets, wanted, timeout=timeout)

    def describe_configs(
        self,
        resources: Collection[ConfigResource],
        *,
        names: Collection[str] | None = None,
        include_synonyms: bool = False,
        include_documentation: bool = False,
        timeout: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """The settings of topics, brokers, groups and so on, with their values and where these come from."""
        return self._call(
            self._admin.describe_configs,
            resources,
            names=names,
            include_synonyms=include_synonyms,
            include_documentation=include_documentation,
            timeout=timeout,
        )

    def list_config_resources(
        self, types: Collection[ConfigResourceType] | None = None, *, timeout: float | None = None
    ) -> list[ConfigResource]:
        """What the cluster has settings of (KIP-1142)."""
        return self._call(self._admin.list_config_resources, types, timeout=timeout)

    def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, Change | str | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Changes the named settings and leaves the others as they are (KIP-339)."""
        self._call(self._admin.alter_configs, changes, validate_only=validate_only, timeout=timeout)

    def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = (), timeout: float | None = None
    ) -> Listing[GroupListing]:
        """Every group of the cluster, sorted by name."""
        return self._call(self._admin.list_groups, states=states, types=types, timeout=timeout)

    def describe_groups(
        self, group_ids: Collection[str], *, include_authorized_operations: bool = False, timeout: float | None = None
    ) -> dict[str, GroupDescription]:
        """Groups with their members and what these are assigned."""
        return self._call(
            self._admin.describe_groups,
            group_ids,
            include_authorized_operations=include_authorized_operations,
            timeout=timeout,
        )

    def remove_members_from_consumer_group(
        self,
        group_id: str,
        members: Iterable[str] | None = None,
        *,
        reason: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Has members leave a group, which then balances without them (KIP-345)."""
        self._call(self._admin.remove_members_from_consumer_group, group_id, members, reason=reason, timeout=timeout)

    def delete_groups(self, group_ids: Collection[str], *, timeout: float | None = None) -> None:
        """Deletes groups and their offsets."""
        self._call(self._admin.delete_groups, group_ids, timeout=timeout)

    def list_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[Partition] | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed: of these partitions, or of all."""
        return self._call(
            self._admin.list_group_offsets, group_id, partitions, require_stable=require_stable, timeout=timeout
        )

    def alter_group_offsets(self, group_id: str, offsets: Offsets, *, timeout: float | None = None) -> None:
        """Commits offsets in the group's name; the group must have no members."""
        self._call(self._admin.alter_group_offsets, group_id, offsets, timeout=timeout)

    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[Partition], *, timeout: float | None = None
    ) -> None:
        """Forgets what the group committed of these partitions."""
        self._call(self._admin.delete_group_offsets, group_id, partitions, timeout=timeout)

    def reset_group_offsets(
        self,
        group_id: str,
        target: OffsetSpec | int | WholeNumbers,
        partitions: Iterable[Partition] | None = None,
        *,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetReset]:
        """Moves a group that has no members to another place."""
        return self._call(
            self._admin.reset_group_offsets, group_id, target, partitions, dry_run=dry_run, timeout=timeout
        )

    def group_lag(self, group_id: str, *, timeout: float | None = None) -> dict[TopicPartition, PartitionLag]:
        """How far the group is behind, for every partition it has committed or is assigned."""
        return self._call(self._admin.group_lag, group_id, timeout=timeout)

    def list_share_group_offsets(
        self, group_id: str, partitions: Iterable[Partition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, SharePartitionOffset]:
        """Where a share group stands: in these partitions, or in all that it reads or has read (KIP-932)."""
        return self._call(self._admin.list_share_group_offsets, group_id, partitions, timeout=timeout)

    def alter_share_group_offsets(self, group_id: str, offsets: WholeNumbers, *, timeout: float | None = None) -> None:
        """Has a share group without members go on elsewhere (KIP-932)."""
        self._call(self._admin.alter_share_group_offsets, group_id, offsets, timeout=timeout)

    def delete_share_group_offsets(
        self, group_id: str, topics: Collection[str], *, timeout: float | None = None
    ) -> None:
        """Has a share group without members forget where it stands in topics (KIP-932)."""
        self._call(self._admin.delete_share_group_offsets, group_id, topics, timeout=timeout)

    def describe_cluster(
        self,
        *,
        include_fenced_brokers: bool = False,
        include_authorized_operations: bool = False,
        timeout: float | None = None,
    ) -> ClusterDescription:
        """The cluster's id, brokers and controller."""
        return self._call(
            self._admin.describe_cluster,
            include_fenced_brokers=include_fenced_brokers,
            include_authorized_operations=include_authorized_operations,
            timeout=timeout,
        )
