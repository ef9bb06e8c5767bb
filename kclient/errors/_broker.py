"""Errors that a broker sends, one class per code.

The classes have the names of the Java client with `Error` for `Exception`. `RequestTimedOutError` is Java's
`TimeoutException`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.errors._base import (
    ApplicationRecoverableError,
    AuthenticationError,
    AuthorizationError,
    InvalidConfigurationError,
    InvalidMetadataError,
    InvalidOffsetError,
    KafkaError,
    KafkaTimeoutError,
    RefreshCoordinatorError,
    RetriableError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kclient.types import TopicPartition

__all__ = [
    "BrokerIdNotRegisteredError",
    "BrokerNotAvailableError",
    "ClusterAuthorizationError",
    "ConcurrentTransactionsError",
    "ControllerMovedError",
    "CoordinatorLoadInProgressError",
    "CoordinatorNotAvailableError",
    "CorruptRecordError",
    "DelegationTokenAuthorizationError",
    "DelegationTokenDisabledError",
    "DelegationTokenExpiredError",
    "DelegationTokenNotFoundError",
    "DelegationTokenOwnerMismatchError",
    "DuplicateBrokerRegistrationError",
    "DuplicateResourceError",
    "DuplicateSequenceError",
    "DuplicateVoterError",
    "ElectionNotNeededError",
    "EligibleLeadersNotAvailableError",
    "FeatureUpdateFailedError",
    "FencedInstanceIdError",
    "FencedLeaderEpochError",
    "FencedMemberEpochError",
    "FencedStateEpochError",
    "FetchSessionIdNotFoundError",
    "FetchSessionTopicIdError",
    "GroupAuthorizationError",
    "GroupIdNotFoundError",
    "GroupMaxSizeReachedError",
    "GroupNotEmptyError",
    "GroupSubscribedToTopicError",
    "IllegalGenerationError",
    "IllegalSaslStateError",
    "InconsistentClusterIdError",
    "InconsistentGroupProtocolError",
    "InconsistentTopicIdError",
    "InconsistentVoterSetError",
    "IneligibleReplicaError",
    "InvalidCommitOffsetSizeError",
    "InvalidFetchSessionEpochError",
    "InvalidFetchSizeError",
    "InvalidGroupIdError",
    "InvalidPartitionsError",
    "InvalidPidMappingError",
    "InvalidPrincipalTypeError",
    "InvalidProducerEpochError",
    "InvalidRecordError",
    "InvalidRecordStateError",
    "InvalidRegistrationError",
    "InvalidRegularExpressionError",
    "InvalidReplicaAssignmentError",
    "InvalidReplicationFactorError",
    "InvalidRequestError",
    "InvalidRequiredAcksError",
    "InvalidSessionTimeoutError",
    "InvalidShareSessionEpochError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTxnStateError",
    "InvalidTxnTimeoutError",
    "InvalidUpdateVersionError",
    "InvalidVoterKeyError",
    "KafkaStorageError",
    "LeaderNotAvailableError",
    "ListenerNotFoundError",
    "LogDirNotFoundError",
    "MemberIdRequiredError",
    "MismatchedEndpointTypeError",
    "NetworkError",
    "NewLeaderElectedError",
    "NoReassignmentInProgressError",
    "NotControllerError",
    "NotCoordinatorError",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotLeaderOrFollowerError",
    "OffsetMetadataTooLargeError",
    "OffsetMovedToTieredStorageError",
    "OffsetNotAvailableError",
    "OffsetOutOfRangeError",
    "OperationNotAttemptedError",
    "OutOfOrderSequenceError",
    "PolicyViolationError",
    "PositionOutOfRangeError",
    "PreferredLeaderNotAvailableError",
    "PrincipalDeserializationError",
    "ProducerFencedError",
    "ReassignmentInProgressError",
    "RebalanceInProgressError",
    "RebootstrapRequiredError",
    "RecordBatchTooLargeError",
    "RecordTooLargeError",
    "ReplicaNotAvailableError",
    "RequestTimedOutError",
    "ResourceNotFoundError",
    "SaslAuthenticationError",
    "SecurityDisabledError",
    "ShareSessionLimitReachedError",
    "ShareSessionNotFoundError",
    "SnapshotNotFoundError",
    "StaleBrokerEpochError",
    "StaleMemberEpochError",
    "StreamsInvalidTopologyEpochError",
    "StreamsInvalidTopologyError",
    "StreamsTopologyFencedError",
    "TelemetryTooLargeError",
    "ThrottlingQuotaExceededError",
    "TopicAuthorizationError",
    "TopicDeletionDisabledError",
    "TopicExistsError",
    "TransactionAbortableError",
    "TransactionCoordinatorFencedError",
    "TransactionalIdAuthorizationError",
    "TransactionalIdNotFoundError",
    "UnacceptableCredentialError",
    "UnknownControllerIdError",
    "UnknownLeaderEpochError",
    "UnknownMemberIdError",
    "UnknownProducerIdError",
    "UnknownServerError",
    "UnknownSubscriptionIdError",
    "UnknownTopicIdError",
    "UnknownTopicOrPartitionError",
    "UnreleasedInstanceIdError",
    "UnstableOffsetCommitError",
    "UnsupportedAssignorError",
    "UnsupportedByAuthenticationError",
    "UnsupportedCompressionTypeError",
    "UnsupportedEndpointTypeError",
    "UnsupportedForMessageFormatError",
    "UnsupportedSaslMechanismError",
    "UnsupportedVersionError",
    "VoterNotFoundError",
]


class UnknownServerError(KafkaError, code=-1):
    """The broker met an error it did not expect; its log names the cause."""


class OffsetOutOfRangeError(InvalidOffsetError, code=1):
    """The offset lies outside the partition's log: it was deleted by retention or never written.
    `auto.offset.reset` decides what a consumer does then.

    Args:
        message: What happened.
        offsets: The offset that does not exist, by partition; empty where a broker told only the code.
    """

    def __init__(self, message: str | None = None, *, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        super().__init__(message)
        self.offsets: dict[TopicPartition, int] = dict(offsets or {})

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions concerned."""
        return list(self.offsets)


class CorruptRecordError(RetriableError, code=2):
    """A record or batch is corrupt: its checksum, its length or its structure is wrong.

    Args:
        message: What was wrong.
        topic: Topic of the batch, if known.
        partition: Partition of the batch, if known.
        offset: Offset of the record, or base offset of the batch, if known.
        position: Where in the buffer, in bytes from its start, if known.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.position = position


class UnknownTopicOrPartitionError(InvalidMetadataError, code=3):
    """The broker does not have this topic or partition: it was deleted, is not created yet, or may not be
    described."""


class InvalidFetchSizeError(KafkaError, code=4):
    """The requested fetch size is not valid."""


class LeaderNotAvailableError(InvalidMetadataError, code=5):
    """The partition has no leader at the moment; an election is going on."""


class NotLeaderOrFollowerError(InvalidMetadataError, code=6):
    """The broker is not the partition's leader (or, for a follower fetch, not a replica of it) any more."""


class RequestTimedOutError(KafkaTimeoutError, code=7):
    """The request did not finish within its time on the broker (`request.timeout.ms`)."""


class BrokerNotAvailableError(KafkaError, code=8):
    """The broker is not available."""


class ReplicaNotAvailableError(InvalidMetadataError, code=9):
    """The replica is not available on this broker."""


class RecordTooLargeError(KafkaError, code=10):
    """The record or batch is larger than the broker or the topic accepts; see the topic's `max.message.bytes`
    and the producer's `max.request.size`."""


class ControllerMovedError(KafkaError, code=11):
    """The controller moved to another broker."""


class OffsetMetadataTooLargeError(KafkaError, code=12):
    """The metadata text of the committed offset is longer than the broker's `offset.metadata.max.bytes`."""


class NetworkError(InvalidMetadataError, code=13):
    """The broker closed the connection before it answered."""


class CoordinatorLoadInProgressError(RetriableError, code=14):
    """The coordinator is still loading its state."""


class CoordinatorNotAvailableError(RefreshCoordinatorError, code=15):
    """The coordinator is not available (yet)."""


class NotCoordinatorError(RefreshCoordinatorError, code=16):
    """This broker is not the coordinator of the group or transactional id."""


class InvalidTopicError(InvalidConfigurationError, code=17):
    """The topic's name is not allowed: up to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'."""


class RecordBatchTooLargeError(InvalidConfigurationError, code=18):
    """The record batch is larger than the topic's `segment.bytes`."""


class NotEnoughReplicasError(RetriableError, code=19):
    """Fewer replicas are in sync than the topic's `min.insync.replicas` asks for; nothing was written."""


class NotEnoughReplicasAfterAppendError(RetriableError, code=20):
    """The records were written, but to fewer in-sync replicas than `min.insync.replicas` asks for."""


class InvalidRequiredAcksError(InvalidConfigurationError, code=21):
    """The value of `acks` is not allowed; use 0, 1 or all (-1)."""


class IllegalGenerationError(ApplicationRecoverableError, code=22):
    """The generation of the group is not the present one: a rebalance has happened since."""


class InconsistentGroupProtocolError(KafkaError, code=23):
    """The member shares no assignment strategy with the group's other members; compare their
    `partition.assignment.strategy`."""


class InvalidGroupIdError(KafkaError, code=24):
    """The group id is empty or not valid; set `group.id`."""


class UnknownMemberIdError(ApplicationRecoverableError, code=25):
    """The coordinator does not know this member: it left or its session expired."""


class InvalidSessionTimeoutError(KafkaError, code=26):
    """`session.timeout.ms` is outside the broker's `group.min.session.timeout.ms` ..
    `group.max.session.timeout.ms`."""


class RebalanceInProgressError(KafkaError, code=27):
    """The group is rebalancing; the member has to rejoin."""


class InvalidCommitOffsetSizeError(KafkaError, code=28):
    """The commit is larger than the broker can store."""


class TopicAuthorizationError(AuthorizationError, code=29):
    """Not allowed to use this topic."""


class GroupAuthorizationError(AuthorizationError, code=30):
    """Not allowed to use this group."""


class ClusterAuthorizationError(AuthorizationError, code=31):
    """Not allowed to do this on the cluster."""

    fatal = True


class InvalidTimestampError(KafkaError, code=32):
    """The record's timestamp is outside the range that the topic accepts (`message.timestamp.before.max.ms`,
    `message.timestamp.after.max.ms`)."""


class UnsupportedSaslMechanismError(AuthenticationError, code=33):
    """The broker does not offer this SASL mechanism; see `sasl.mechanism`."""


class IllegalSaslStateError(AuthenticationError, code=34):
    """The request does not fit the state of the SASL exchange; is the listener the one `security.protocol`
    names?"""


class UnsupportedVersionError(InvalidConfigurationError, code=35):
    """The broker does not support the version of the API, or a feature needs a newer version."""

    fatal = True


class TopicExistsError(KafkaError, code=36):
    """The topic exists already."""


class InvalidPartitionsError(KafkaError, code=37):
    """The number of partitions is not valid."""


class InvalidReplicationFactorError(InvalidConfigurationError, code=38):
    """The replication factor is below one or above the number of brokers."""


class InvalidReplicaAssignmentError(KafkaError, code=39):
    """The assignment of replicas to brokers is not valid."""


class NotControllerError(RetriableError, code=41):
    """This broker is not the controller of the cluster."""


class InvalidRequestError(KafkaError, code=42):
    """The broker finds the request malformed or contradictory; its log may say more."""


class UnsupportedForMessageFormatError(InvalidConfigurationError, code=43):
    """The topic's message format is too old for the request."""

    fatal = True


class PolicyViolationError(KafkaError, code=44):
    """The request breaks a policy that is configured on the broker."""


class OutOfOrderSequenceError(KafkaError, code=45):
    """The broker expected another sequence number from this producer: a batch before this one is missing."""


class DuplicateSequenceError(KafkaError, code=46):
    """The broker has this batch already."""


class InvalidProducerEpochError(ApplicationRecoverableError, code=47):
    """The producer's epoch is old: a newer producer uses the same id."""


class InvalidTxnStateError(KafkaError, code=48):
    """The transaction is not in a state that allows this."""


class InvalidPidMappingError(ApplicationRecoverableError, code=49):
    """The producer id does not belong to the transactional id (any more): it expired or was taken over."""

    fatal = True


class InvalidTxnTimeoutError(KafkaError, code=50):
    """`transaction.timeout.ms` is above the broker's `transaction.max.timeout.ms`."""


class ConcurrentTransactionsError(RetriableError, code=51):
    """The previous transaction of this transactional id is still being completed."""


class TransactionCoordinatorFencedError(KafkaError, code=52):
    """The transaction coordinator that wrote the marker is not the present one."""


class TransactionalIdAuthorizationError(AuthorizationError, code=53):
    """Not allowed to use this transactional id."""

    fatal = True


class SecurityDisabledError(KafkaError, code=54):
    """Security features are turned off on the broker (no authorizer)."""


class OperationNotAttemptedError(KafkaError, code=55):
    """Another operation of the same request failed, so this one was not tried."""


class KafkaStorageError(InvalidMetadataError, code=56):
    """The broker could not use the disk that holds the log."""


class LogDirNotFoundError(KafkaError, code=57):
    """The log directory is not one of the broker's."""


class SaslAuthenticationError(AuthenticationError, code=58):
    """The broker rejected the credentials (`sasl.jaas.config`)."""


class UnknownProducerIdError(OutOfOrderSequenceError, code=59):
    """The broker has forgotten this producer, for instance because its last records were deleted."""


class ReassignmentInProgressError(KafkaError, code=60):
    """The partition is being moved to other brokers already."""


class DelegationTokenDisabledError(KafkaError, code=61):
    """Delegation tokens are not enabled on the broker (`delegation.token.secret.key`)."""


class DelegationTokenNotFoundError(KafkaError, code=62):
    """The broker does not know the delegation token."""


class DelegationTokenOwnerMismatchError(KafkaError, code=63):
    """The principal is neither owner nor renewer of the delegation token."""


class UnsupportedByAuthenticationError(KafkaError, code=64):
    """Delegation tokens cannot be asked for on this kind of connection."""


class DelegationTokenAuthorizationError(AuthorizationError, code=65):
    """Not allowed to use delegation tokens."""


class DelegationTokenExpiredError(KafkaError, code=66):
    """The delegation token has expired."""


class InvalidPrincipalTypeError(KafkaError, code=67):
    """The type of the principal is not supported."""


class GroupNotEmptyError(KafkaError, code=68):
    """The group still has members; stop them first."""


class GroupIdNotFoundError(KafkaError, code=69):
    """The group does not exist."""


class FetchSessionIdNotFoundError(RetriableError, code=70):
    """The broker has dropped the fetch session; a new one is started."""


class InvalidFetchSessionEpochError(RetriableError, code=71):
    """The epoch of the fetch session is not the expected one; a new session is started."""


class ListenerNotFoundError(InvalidMetadataError, code=72):
    """The leader has no listener of the name over which the metadata were asked for."""


class TopicDeletionDisabledError(KafkaError, code=73):
    """Topics cannot be deleted on this cluster (`delete.topic.enable`)."""


class FencedLeaderEpochError(InvalidMetadataError, code=74):
    """The leader epoch of the request is older than the broker's."""


class UnknownLeaderEpochError(RetriableError, code=75):
    """The leader epoch of the request is newer than the broker's."""


class UnsupportedCompressionTypeError(KafkaError, code=76):
    """The compression of the partition's records needs a newer version of the request."""


class StaleBrokerEpochError(KafkaError, code=77):
    """The broker has restarted since the request was made."""


class OffsetNotAvailableError(RetriableError, code=78):
    """The new leader does not know the partition's end for certain yet."""


class MemberIdRequiredError(KafkaError, code=79):
    """The member has to join again with the id that the coordinator gave it (KIP-394)."""


class PreferredLeaderNotAvailableError(InvalidMetadataError, code=80):
    """The preferred leader is not available."""


class GroupMaxSizeReachedError(KafkaError, code=81):
    """The group has as many members as `group.max.size` allows."""


class FencedInstanceIdError(ApplicationRecoverableError, code=82):
    """Another member with the same `group.instance.id` has taken this one's place."""

    fatal = True


class EligibleLeadersNotAvailableError(InvalidMetadataError, code=83):
    """No replica that could lead the partition is available."""


class ElectionNotNeededError(InvalidMetadataError, code=84):
    """The partition has the leader already that an election would choose."""


class NoReassignmentInProgressError(KafkaError, code=85):
    """The partition is not being moved."""


class GroupSubscribedToTopicError(KafkaError, code=86):
    """Offsets cannot be deleted while the group is subscribed to the topic."""


class InvalidRecordError(InvalidConfigurationError, code=87):
    """The broker's validation rejected the record (for instance a missing key on a compacted topic)."""


class UnstableOffsetCommitError(RetriableError, code=88):
    """A transaction that commits these offsets is still open."""


class ThrottlingQuotaExceededError(RetriableError, code=89):
    """The quota of the user or client is used up for the moment."""


class ProducerFencedError(ApplicationRecoverableError, code=90):
    """A newer producer with the same `transactional.id` has taken this one's place."""

    fatal = True


class ResourceNotFoundError(KafkaError, code=91):
    """The resource that the request names does not exist."""


class DuplicateResourceError(KafkaError, code=92):
    """The request names the same resource twice."""


class UnacceptableCredentialError(KafkaError, code=93):
    """The credential does not fulfil the broker's requirements."""


class InconsistentVoterSetError(KafkaError, code=94):
    """Sender or receiver of a vote is not among the expected voters."""


class InvalidUpdateVersionError(KafkaError, code=95):
    """The version to update to is not valid."""


class FeatureUpdateFailedError(KafkaError, code=96):
    """The finalized features could not be updated because of an unexpected error on the broker."""


class PrincipalDeserializationError(KafkaError, code=97):
    """A forwarded request carried a principal that the broker could not read."""


class SnapshotNotFoundError(KafkaError, code=98):
    """The snapshot does not exist."""


class PositionOutOfRangeError(KafkaError, code=99):
    """The position lies outside the snapshot."""


class UnknownTopicIdError(InvalidMetadataError, code=100):
    """The broker does not have a topic of this id: it was deleted, or created anew under the same name."""


class DuplicateBrokerRegistrationError(KafkaError, code=101):
    """The broker id is in use already."""


class BrokerIdNotRegisteredError(KafkaError, code=102):
    """The broker id is not registered."""


class InconsistentTopicIdError(InvalidMetadataError, code=103):
    """The topic id of the request is not that of the broker's log."""


class InconsistentClusterIdError(KafkaError, code=104):
    """The cluster id of the request is not that of the broker."""


class TransactionalIdNotFoundError(KafkaError, code=105):
    """The transactional id is not known."""


class FetchSessionTopicIdError(RetriableError, code=106):
    """The fetch session mixes topic names and topic ids; a new one is started."""


class IneligibleReplicaError(KafkaError, code=107):
    """The new in-sync set contains a replica that may not be in it."""


class NewLeaderElectedError(KafkaError, code=108):
    """The partition was changed, and its leader with it."""


class OffsetMovedToTieredStorageError(KafkaError, code=109):
    """The offset has moved to tiered storage."""


class FencedMemberEpochError(KafkaError, code=110):
    """The coordinator has fenced the member's epoch; it gives up its partitions and joins anew (KIP-848)."""


class UnreleasedInstanceIdError(KafkaError, code=111):
    """The `group.instance.id` is still used by a member that has not left."""


class UnsupportedAssignorError(KafkaError, code=112):
    """The coordinator does not have this assignor; see `group.remote.assignor`."""


class StaleMemberEpochError(KafkaError, code=113):
    """The member's epoch is old; it learns the new one by its next heartbeat (KIP-848)."""


class MismatchedEndpointTypeError(KafkaError, code=114):
    """The request was sent to the wrong kind of endpoint (broker or controller)."""


class UnsupportedEndpointTypeError(KafkaError, code=115):
    """The kind of endpoint is not supported."""


class UnknownControllerIdError(KafkaError, code=116):
    """The controller id is not known."""


class UnknownSubscriptionIdError(KafkaError, code=117):
    """The telemetry subscription is out of date."""


class TelemetryTooLargeError(KafkaError, code=118):
    """The telemetry is larger than the broker accepts."""


class InvalidRegistrationError(KafkaError, code=119):
    """The controller rejected the broker's registration."""


class TransactionAbortableError(KafkaError, code=120):
    """The transaction cannot go on; abort it, then the producer can be used further (KIP-890)."""


class InvalidRecordStateError(KafkaError, code=121):
    """The record is not in a state in which it can be acknowledged (KIP-932)."""


class ShareSessionNotFoundError(RetriableError, code=122):
    """The broker has dropped the share session."""


class InvalidShareSessionEpochError(RetriableError, code=123):
    """The epoch of the share session is not the expected one."""


class FencedStateEpochError(KafkaError, code=124):
    """The epoch of the share group's state is not the coordinator's."""


class InvalidVoterKeyError(KafkaError, code=125):
    """The voter's key is not that of the replica asked."""


class DuplicateVoterError(KafkaError, code=126):
    """The voter is in the set of voters already."""


class VoterNotFoundError(KafkaError, code=127):
    """The voter is not in the set of voters."""


class InvalidRegularExpressionError(KafkaError, code=128):
    """The regular expression is not valid; the coordinator reads it as RE2/J."""


class RebootstrapRequiredError(KafkaError, code=129):
    """The view of the cluster is too old: start again from `bootstrap.servers` (KIP-1102)."""


class StreamsInvalidTopologyError(KafkaError, code=130):
    """The Streams topology is not valid."""


class StreamsInvalidTopologyEpochError(KafkaError, code=131):
    """The epoch of the Streams topology is not valid."""


class StreamsTopologyFencedError(KafkaError, code=132):
    """The epoch of the Streams topology is old."""


class ShareSessionLimitReachedError(RetriableError, code=133):
    """The broker has as many share sessions as it allows."""
