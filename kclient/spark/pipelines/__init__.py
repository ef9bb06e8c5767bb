"""Spark jobs that people run: `archive`, topics to Parquet, and `replay`, an archive back to topics."""

from kclient.spark.pipelines.archive import ArchiveSummary, TopicSummary, archive
from kclient.spark.pipelines.failures import PipelineError, ReplayError
from kclient.spark.pipelines.manifest import ArchiveError
from kclient.spark.pipelines.replay import ReplaySummary, TopicReplay, replay

__all__ = [
    "ArchiveError",
    "ArchiveSummary",
    "PipelineError",
    "ReplayError",
    "ReplaySummary",
    "TopicReplay",
    "TopicSummary",
    "archive",
    "replay",
]
