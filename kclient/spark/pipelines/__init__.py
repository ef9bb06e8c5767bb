"""Spark jobs that people run: today `archive`, topics to Parquet."""

from kclient.spark.pipelines.archive import ArchiveSummary, TopicSummary, archive
from kclient.spark.pipelines.manifest import ArchiveError

__all__ = ["ArchiveError", "ArchiveSummary", "TopicSummary", "archive"]
