"""Spark jobs that people run: `archive`, topics to Parquet, `replay`, back to topics, `audit`, which compares them."""

from kclient.spark.pipelines.archive import ArchiveSummary, TopicSummary, archive
from kclient.spark.pipelines.audit import audit
from kclient.spark.pipelines.audit_report import AuditReport
from kclient.spark.pipelines.audit_sides import ArchivedTopic, TopicAt
from kclient.spark.pipelines.failures import AuditError, PipelineError, ReplayError
from kclient.spark.pipelines.manifest import ArchiveError
from kclient.spark.pipelines.replay import ReplaySummary, TopicReplay, replay

__all__ = [
    "ArchiveError",
    "ArchiveSummary",
    "ArchivedTopic",
    "AuditError",
    "AuditReport",
    "PipelineError",
    "ReplayError",
    "ReplaySummary",
    "TopicAt",
    "TopicReplay",
    "TopicSummary",
    "archive",
    "audit",
    "replay",
]
