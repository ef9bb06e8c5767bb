"""Where handlers find what a request names, for a client that may use it: resolved and authorised in one place.

A topic is named by its name or by its id; what a client may do with it is asked of the gateway's `Authorizer`, with the
operations and the codes of Kafka's. An `Audit` is told what a client was allowed, and what it was denied that it had
asked for; not what was left out of a list because the client may not see it, nor which operations it may do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from kclient.acls import AclOperation, ResourceType
from kclient.errors import (
    ClusterAuthorizationError,
    CoordinatorLoadInProgressError,
    GroupAuthorizationError,
    NotCoordinatorError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
    UnknownServerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.coordination import CoordinatorType

if TYPE_CHECKING:
    from kclient.errors import KafkaError
    from kclient.gateway.contexts import ConnectionContext
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.topics.record import TopicRecord
    from kclient.gateway.topics.table import TopicTable

logger: logging.Logger = logging.getLogger("kclient.gateway")

CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type `CLUSTER`."""


_O = AclOperation
OPERATIONS: Final[dict[ResourceType, tuple[AclOperation, ...]]] = {
    ResourceType.TOPIC: (
        _O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ResourceType.CLUSTER: (
        _O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE),
    ResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    ResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}  # fmt: skip
"""What there is to be done with each type of resource (Kafka's `AclEntry.supportedOperations`)."""

_EVERYTHING: Final = {kind: sum(1 << each for each in operations) for kind, operations in OPERATIONS.items()}

_REFUSALS: Final[dict[ResourceType, type[KafkaError]]] = {
    ResourceType.TOPIC: TopicAuthorizationError,
    ResourceType.GROUP: GroupAuthorizationError,
    ResourceType.CLUSTER: ClusterAuthorizationError,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationError,
}


class Authorizer(Protocol):
    """Decides who may do what. It is asked often, and must not wait."""

    def allows(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        """Whether a client may do this with the resource of this name, which need not exist."""
        ...

    def allows_any(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType) -> bool:
        """Whether there may be a resource of this type with which a client may do this."""
        ...


class Audit(Protocol):
    """Is told what clients were allowed and denied. It is told often, and must neither wait nor raise."""

    def tell(
        self, client: ConnectionContext, operation: AclOperation, kind: ResourceType, name: str, *, allowed: bool
    ) -> None:
        """Something was allowed or denied that a client has asked for."""
        ...


def _failed(authorizer: Authorizer, error: Exception) -> UnknownServerError:
    logger.error("%s failed, what was asked is refused: %s", type(authorizer).__name__, error, exc_info=error)
    return UnknownServerError("whether this is allowed could not be found out: see the gateway's log")


class Access:
    """What clients find and may do.

    Args:
        topics: All topics.
        leadership: Tells which groups this gateway coordinates.
        authorizer: Who decides; None where everything is allowed.
        is_loaded: Whether a group that is coordinated here has been read from the store; None if all have.
    """

    def __init__(
        self,
        topics: TopicTable,
        leadership: Leadership,
        authorizer: Authorizer | None = None,
        *,
        is_loaded: Callable[[str], bool] | None = None,
    ) -> None:
        self._topics = topics
        self._audit: Audit | None = None
        self._changes: Callable[[], int] | None = None
        self._is_loaded = is_loaded
        self._leadership = leadership
        self.authorizer: Authorizer | None = authorizer
        """May be replaced at any time: what is asked from then on goes to the new one."""

    def guard(self, authorizer: Authorizer, audit: Audit, changes: Callable[[], int]) -> None:
        """Have an authorizer decide from now on.

        Args:
            authorizer: Who decides.
            audit: Is told of decisions.
            changes: Tells how often rights have changed.
        """
        self.authorizer, self._audit, self._changes = authorizer, audit, changes

    # What a client may do

    @property
    def changes(self) -> int:
        """Grows whenever clients may have other rights than before."""
        return 0 if self._changes is None else self._changes()

    def allows(
        self,
        client: ConnectionContext,
        operation: AclOperation,
        kind: ResourceType,
        name: str,
        *,
        asked: bool = False,
        quiet: bool = False,
    ) -> bool:
        """Whether a client may do this with a resource.

        Args:
            client: Whose.
            operation: What.
            kind: The type of the resource.
            name: Its name; it need not exist.
            asked: Whether the client has named it, so that it is refused something: then the audit is told of that.
            quiet: Whether it is allowed nothing either, but told what it may do: then the audit is told nothing.

        Raises:
            UnknownServerError: The authorizer has failed.
        """
        authorizer = self.authorizer
        if authorizer is None:
            return True
        try:
            allowed = authorizer.allows(client, operation, kind, name)
        except Exception as error:
            raise _failed(authorizer, error) from error
        if self._audit is not None and (allowed or asked) and not quiet:
            self._audit.tell(client, operation, kind, name, allowed=allowed)
        return allowed

    def allows_any(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType) -> bool:
        """Whether a client may do this with some resource of a type. Raises as `allows`."""
        authorizer = self.authorizer
        if authorizer is None:
            return True
        try:
            return authorizer.allows_any(client, operation, kind)
        except Exception as error:
            raise _failed(authorizer, error) from error

    def check(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType, name: str) -> None:
        """Refuse what a client may not do.

        Raises:
            AuthorizationError: Of the class that goes with the type of resource.
        """
        if not self.allows(client, operation, kind, name, asked=True):
            raise _REFUSALS[kind](f"{client.principal} may not {operation.name} the {kind.name.lower()} {name[:300]}")

    def check_cluster(self, client: ConnectionContext, operation: AclOperation) -> None:
        """Refuse what a client may not do with the cluster. Raises `ClusterAuthorizationError`."""
        self.check(client, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def check_group(self, client: ConnectionContext, operation: AclOperation, group_id: str) -> None:
        """Refuse what a client may not do with a group, or not here.

        Raises:
            GroupAuthorizationError: The client may not do this.
            NotCoordinatorError: Another gateway coordinates the group.
            CoordinatorLoadInProgressError: This one does from now on, and has not read it yet.
        """
        self.check(client, operation, ResourceType.GROUP, group_id)
        if not self._leadership.coordinates(CoordinatorType.GROUP, group_id):
            other = self._leadership.coordinator_id(CoordinatorType.GROUP, group_id)
            raise NotCoordinatorError(f"the gateway with node.id={other} coordinates the group {group_id[:300]}")
        if self._is_loaded is not None and not self._is_loaded(group_id):
            raise CoordinatorLoadInProgressError(f"the group {group_id[:300]} is being read: another gateway led it")

    def operations(self, client: ConnectionContext, kind: ResourceType, name: str) -> int:
        """What a client may do with a resource, as the bits of the operations' numbers (KIP-430)."""
        if self.authorizer is None:  # for each topic that is described
            return _EVERYTHING[kind]
        return sum(
            1 << operation for operation in OPERATIONS[kind] if self.allows(client, operation, kind, name, quiet=True)
        )

    def cluster_operations(self, client: ConnectionContext) -> int:
        """What a client may do with the cluster; nothing is told to whoever may not describe it."""
        if not self.allows(client, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
            return 0
        return self.operations(client, ResourceType.CLUSTER, CLUSTER_NAME)

    # Topics

    def find(
        self,
        client: ConnectionContext,
        operation: AclOperation,
        name: str,
        topic_id: bytes | None,
        *,
        or_cluster: AclOperation | None = None,
    ) -> TopicRecord | None:
        """The topic of this id, or of this name where the id is None; None where there is none that may be used.

        Whoever may do `or_cluster` with the cluster may use all topics.
        """
        topics = self._topics
        record = topics.get(name) if topic_id is None else topics.by_id(topic_id)
        if record is None or self.authorizer is None or self.allows(client, operation, ResourceType.TOPIC, record.name):
            return record
        everything = or_cluster is not None and self.allows(client, or_cluster, ResourceType.CLUSTER, CLUSTER_NAME)
        return record if everything else None

    def topic(
        self,
        client: ConnectionContext,
        operation: AclOperation,
        name: str,
        topic_id: bytes | None = None,
        *,
        or_cluster: AclOperation | None = None,
    ) -> TopicRecord:
        """The same, or why not. Whoever may not use a name does not learn whether there is such a topic.

        Args:
            client: Whose.
            operation: What it wants to do.
            name: The topic's name.
            topic_id: Its id, which takes the place of the name.
            or_cluster: Whoever may do this with the cluster may use all topics.

        Raises:
            TopicAuthorizationError: The client may not use it.
            InvalidTopicError: It is one of Kafka's own, see `described`.
            UnknownTopicOrPartitionError, UnknownTopicIdError: There is none.
        """
        topics = self._topics
        everything = or_cluster is not None and self.allows(client, or_cluster, ResourceType.CLUSTER, CLUSTER_NAME)
        if topic_id is None:
            if not everything:
                self.check(client, operation, ResourceType.TOPIC, name)
            record = topics.get(name)
            if record is None:
                topics.check_not_internal(name)
                raise UnknownTopicOrPartitionError(f"there is no topic {name[:300]}")
            return record
        found = topics.by_id(topic_id)
        record = found or topics.internal_by_id(topic_id)
        if record is None:
            raise UnknownTopicIdError(f"no topic has the id {topic_id.hex()}")
        if not everything and not self.allows(client, operation, ResourceType.TOPIC, record.name, asked=True):
            # without its name
            raise TopicAuthorizationError(f"{client.principal} may not {operation.name} the topic {topic_id.hex()}")
        if found is None:
            topics.check_not_internal(record.name)
        return record

    def deletable(self, client: ConnectionContext, topic_id: bytes) -> TopicRecord:
        """A topic that a client may delete, or all of the cluster; raises as `topic`."""
        return self.topic(client, AclOperation.DELETE, "", topic_id, or_cluster=AclOperation.DELETE)

    def check_deletable(self, client: ConnectionContext, name: str) -> None:
        """Refuse to delete what a client may not.

        Whoever may delete the name is not told here whether there is such a topic: one that is not served, because its
        row is damaged or its deletion is not certain, can be deleted too.

        Raises:
            TopicAuthorizationError: The client may delete neither it nor all of the cluster.
            UnknownTopicOrPartitionError: There is none, and the client may know that.
            InvalidTopicError: It is one of Kafka's own, and the client may know that.
        """
        if self.allows(client, AclOperation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME):
            return
        topics = self._topics
        told = not topics.may_have(name) and not self.allows(client, AclOperation.DELETE, ResourceType.TOPIC, name)
        if told and self.allows(client, AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            topics.check_not_internal(name)
            raise UnknownTopicOrPartitionError(f"there is no topic {name[:300]}")
        self.check(client, AclOperation.DELETE, ResourceType.TOPIC, name)

    def internal(
        self, client: ConnectionContext, operation: AclOperation, name: str, topic_id: bytes | None = None
    ) -> TopicRecord | None:
        """One of Kafka's own topics, as `find`."""
        topics = self._topics
        record = topics.internal(name) if topic_id is None else topics.internal_by_id(topic_id)
        if record is None or not self.allows(client, operation, ResourceType.TOPIC, record.name):
            return None
        return record

    def described(
        self, client: ConnectionContext, operation: AclOperation, name: str, topic_id: bytes | None = None
    ) -> TopicRecord:
        """As `topic`, and Kafka's own topics too: for whoever only wants to know what there is."""
        record = self.internal(client, operation, name, topic_id)
        return self.topic(client, operation, name, topic_id) if record is None else record

    def names(self, client: ConnectionContext, operation: AclOperation) -> list[str]:
        """The names of all topics, Kafka's own too, with which a client may do this, sorted; not to be changed."""
        names = self._topics.told()
        if self.authorizer is None:
            return names
        return list(self.allowed(client, operation, ResourceType.TOPIC, names))

    def allowed(
        self, client: ConnectionContext, operation: AclOperation, kind: ResourceType, names: Iterable[str]
    ) -> Iterable[str]:
        """Of these resources those with which a client may do this."""
        return (name for name in names if self.allows(client, operation, kind, name))
