"""The admin client: topics, settings, groups and their offsets, the cluster."""

from kclient.admin.admin import Admin
from kclient.admin.types import (
    ClusterDescription,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    GroupDescription,
    GroupListing,
    MemberDescription,
    NewTopic,
    OffsetReset,
    OffsetSpec,
    PartialFailureError,
    PartitionLag,
    TopicDescription,
    TopicListing,
)

__all__ = [
    "Admin",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigSource",
    "GroupDescription",
    "GroupListing",
    "MemberDescription",
    "NewTopic",
    "OffsetReset",
    "OffsetSpec",
    "PartialFailureError",
    "PartitionLag",
    "TopicDescription",
    "TopicListing",
]
