"""The admin client: topics, settings, groups, their offsets, ACLs, users, tokens, quotas, transactions, the cluster."""

from kclient.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from kclient.admin.acl_types import AclBinding, AclBindingFilter
from kclient.admin.admin import Admin
from kclient.admin.feature_types import (
    FeatureMetadata,
    FeatureUpdate,
    FinalizedVersionRange,
    SupportedVersionRange,
    UpgradeType,
)
from kclient.admin.listing import Listing
from kclient.admin.log_dir_types import LogDirDescription, ReplicaInfo, ReplicaLogDirInfo, TopicPartitionReplica
from kclient.admin.quorum_types import QuorumInfo, QuorumReplica, RaftVoterEndpoint
from kclient.admin.quota_types import ClientQuotaEntity, ClientQuotaFilter, QuotaName
from kclient.admin.share_offset_types import SharePartitionOffset
from kclient.admin.token_types import DelegationToken
from kclient.admin.transaction_types import (
    AbortTransactionSpec,
    ActiveProducer,
    FencedProducer,
    HangingTransaction,
    TransactionDescription,
    TransactionListing,
)
from kclient.admin.types import (
    ClusterDescription,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    ElectionType,
    GroupDescription,
    GroupListing,
    MemberDescription,
    NewTopic,
    OffsetReset,
    OffsetSpec,
    PartialFailureError,
    PartitionLag,
    PartitionReassignment,
    TopicDescription,
    TopicIds,
    TopicListing,
)
from kclient.admin.user_types import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

__all__ = [
    "AbortTransactionSpec",
    "AclBinding",
    "AclBindingFilter",
    "AclOperation",
    "AclPermissionType",
    "ActiveProducer",
    "Admin",
    "ClientQuotaEntity",
    "ClientQuotaFilter",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "DelegationToken",
    "ElectionType",
    "FeatureMetadata",
    "FeatureUpdate",
    "FencedProducer",
    "FinalizedVersionRange",
    "GroupDescription",
    "GroupListing",
    "HangingTransaction",
    "Listing",
    "LogDirDescription",
    "MemberDescription",
    "NewTopic",
    "OffsetReset",
    "OffsetSpec",
    "PartialFailureError",
    "PartitionLag",
    "PartitionReassignment",
    "PatternType",
    "QuorumInfo",
    "QuorumReplica",
    "QuotaName",
    "RaftVoterEndpoint",
    "ReplicaInfo",
    "ReplicaLogDirInfo",
    "ResourceType",
    "ScramCredentialInfo",
    "ScramMechanism",
    "SharePartitionOffset",
    "SupportedVersionRange",
    "TopicDescription",
    "TopicIds",
    "TopicListing",
    "TopicPartitionReplica",
    "TransactionDescription",
    "TransactionListing",
    "UpgradeType",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
]
