"""Spark jobs that people run: `archive`, topics to Parquet (`expire_archive` deletes what is old); `replay`, back to
topics; `mirror`, from cluster to cluster; `compact`, `audit`, `stats`."""

from kclient.spark.pipelines.archive import ArchiveSummary, TopicSummary, archive
from kclient.spark.pipelines.audit import audit
from kclient.spark.pipelines.audit_report import AuditReport
from kclient.spark.pipelines.audit_sides import ArchivedTopic, TopicAt
from kclient.spark.pipelines.compact import CompactSummary, compact
from kclient.spark.pipelines.compact_folder import compacted_table
from kclient.spark.pipelines.expire import ExpirySummary, TopicExpiry, expire_archive
from kclient.spark.pipelines.failures import (
    AuditError,
    CompactError,
    MirrorError,
    PipelineError,
    ReplayError,
    StatsError,
)
from kclient.spark.pipelines.manifest import ArchiveError
from kclient.spark.pipelines.mirror import MirrorSummary, TopicMirror, mirror
from kclient.spark.pipelines.mirror_groups import GroupsMirrored
from kclient.spark.pipelines.replay import ReplaySummary, TopicReplay, replay
from kclient.spark.pipelines.stats import stats
from kclient.spark.pipelines.stats_report import StatsReport
from kclient.spark.pipelines.stats_results import KeyShare, KeyStats, PartitionStats

__all__ = [
    "ArchiveError",
    "ArchiveSummary",
    "ArchivedTopic",
    "AuditError",
    "AuditReport",
    "CompactError",
    "CompactSummary",
    "ExpirySummary",
    "GroupsMirrored",
    "KeyShare",
    "KeyStats",
    "MirrorError",
    "MirrorSummary",
    "PartitionStats",
    "PipelineError",
    "ReplayError",
    "ReplaySummary",
    "StatsError",
    "StatsReport",
    "TopicAt",
    "TopicExpiry",
    "TopicMirror",
    "TopicReplay",
    "TopicSummary",
    "archive",
    "audit",
    "compact",
    "compacted_table",
    "expire_archive",
    "mirror",
    "replay",
    "stats",
]
