"""Kafka topics in PySpark: the data source `kclient`, and pipelines that run on it.

```python
frame = (
    spark.read.format("kclient")
    .option("kafka.bootstrap.servers", "localhost:9092")
    .option("subscribe", "flights")
    .load()
)
```

Spark finds the source by itself where the package is installed for the driver and the workers;
`register(spark)` is for the cases where it is not found (a zip on the path, say).
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kclient.errors import MissingExtraError

if TYPE_CHECKING:
    from kclient.spark.lag import LagListener as LagListener
    from kclient.spark.lag import QueryLag as QueryLag
    from kclient.spark.pipelines import ArchivedTopic as ArchivedTopic
    from kclient.spark.pipelines import ArchiveError as ArchiveError
    from kclient.spark.pipelines import ArchiveSummary as ArchiveSummary
    from kclient.spark.pipelines import AuditError as AuditError
    from kclient.spark.pipelines import AuditReport as AuditReport
    from kclient.spark.pipelines import CompactError as CompactError
    from kclient.spark.pipelines import CompactSummary as CompactSummary
    from kclient.spark.pipelines import ExpirySummary as ExpirySummary
    from kclient.spark.pipelines import GroupsMirrored as GroupsMirrored
    from kclient.spark.pipelines import KeyShare as KeyShare
    from kclient.spark.pipelines import KeyStats as KeyStats
    from kclient.spark.pipelines import MirrorError as MirrorError
    from kclient.spark.pipelines import MirrorSummary as MirrorSummary
    from kclient.spark.pipelines import PartitionStats as PartitionStats
    from kclient.spark.pipelines import PipelineError as PipelineError
    from kclient.spark.pipelines import ReplayError as ReplayError
    from kclient.spark.pipelines import ReplaySummary as ReplaySummary
    from kclient.spark.pipelines import StatsError as StatsError
    from kclient.spark.pipelines import StatsReport as StatsReport
    from kclient.spark.pipelines import TopicAt as TopicAt
    from kclient.spark.pipelines import TopicExpiry as TopicExpiry
    from kclient.spark.pipelines import TopicMirror as TopicMirror
    from kclient.spark.pipelines import TopicReplay as TopicReplay
    from kclient.spark.pipelines import TopicSummary as TopicSummary
    from kclient.spark.pipelines import archive as archive
    from kclient.spark.pipelines import audit as audit
    from kclient.spark.pipelines import compact as compact
    from kclient.spark.pipelines import compacted_table as compacted_table
    from kclient.spark.pipelines import expire_archive as expire_archive
    from kclient.spark.pipelines import mirror as mirror
    from kclient.spark.pipelines import replay as replay
    from kclient.spark.pipelines import stats as stats
    from kclient.spark.ranges import DataLossError as DataLossError
    from kclient.spark.registry_values import from_registry as from_registry
    from kclient.spark.sink_records import ExactlyOnceError as ExactlyOnceError
    from kclient.spark.source import KclientDataSource as KclientDataSource
    from kclient.spark.source import register as register

_EXPORTS = {
    "ArchiveError": "kclient.spark.pipelines",
    "ArchiveSummary": "kclient.spark.pipelines",
    "ArchivedTopic": "kclient.spark.pipelines",
    "AuditError": "kclient.spark.pipelines",
    "AuditReport": "kclient.spark.pipelines",
    "CompactError": "kclient.spark.pipelines",
    "CompactSummary": "kclient.spark.pipelines",
    "DataLossError": "kclient.spark.ranges",
    "ExactlyOnceError": "kclient.spark.sink_records",
    "KclientDataSource": "kclient.spark.source",
    "LagListener": "kclient.spark.lag",
    "QueryLag": "kclient.spark.lag",
    "PipelineError": "kclient.spark.pipelines",
    "ReplayError": "kclient.spark.pipelines",
    "ReplaySummary": "kclient.spark.pipelines",
    "TopicAt": "kclient.spark.pipelines",
    "TopicReplay": "kclient.spark.pipelines",
    "TopicSummary": "kclient.spark.pipelines",
    "archive": "kclient.spark.pipelines",
    "from_registry": "kclient.spark.registry_values",
    "audit": "kclient.spark.pipelines",
    "compact": "kclient.spark.pipelines",
    "compacted_table": "kclient.spark.pipelines",
    "expire_archive": "kclient.spark.pipelines",
    "ExpirySummary": "kclient.spark.pipelines",
    "TopicExpiry": "kclient.spark.pipelines",
    "replay": "kclient.spark.pipelines",
    "KeyShare": "kclient.spark.pipelines",
    "KeyStats": "kclient.spark.pipelines",
    "PartitionStats": "kclient.spark.pipelines",
    "StatsError": "kclient.spark.pipelines",
    "StatsReport": "kclient.spark.pipelines",
    "stats": "kclient.spark.pipelines",
    "GroupsMirrored": "kclient.spark.pipelines",
    "MirrorError": "kclient.spark.pipelines",
    "MirrorSummary": "kclient.spark.pipelines",
    "TopicMirror": "kclient.spark.pipelines",
    "mirror": "kclient.spark.pipelines",
    "register": "kclient.spark.source",
}

__all__ = [
    "ArchiveError",
    "ArchiveSummary",
    "ArchivedTopic",
    "AuditError",
    "AuditReport",
    "CompactError",
    "CompactSummary",
    "DataLossError",
    "ExactlyOnceError",
    "ExpirySummary",
    "GroupsMirrored",
    "KclientDataSource",
    "KeyShare",
    "KeyStats",
    "LagListener",
    "MirrorError",
    "MirrorSummary",
    "PartitionStats",
    "PipelineError",
    "QueryLag",
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
    "from_registry",
    "mirror",
    "register",
    "replay",
    "stats",
]

_REQUIRED = {
    "anyio": "anyio",
    "crc32c": "crc32c",
    "snappy": "python-snappy",
    "lz4": "lz4",
    "zstandard": "zstandard",
    "typing_extensions": "typing-extensions",
}
"""What every kclient needs, by the module's name and the package's."""


def _check_interpreter() -> None:
    # Spark's workers find kclient on a path that they share with the driver, and may run another Python than it.
    for module, package in _REQUIRED.items():
        if module not in sys.modules and find_spec(module) is None:
            here = f"kclient.spark in {sys.executable}"
            choice = "(PYSPARK_PYTHON or spark.pyspark.python names another Python for Spark's workers)"
            raise MissingExtraError(package, "spark", f"{here} {choice}")


_check_interpreter()

if not TYPE_CHECKING:  # else the checkers would believe that every name exists

    def __getattr__(name: str) -> Any:
        if name in _EXPORTS:
            try:
                return getattr(importlib.import_module(_EXPORTS[name]), name)
            except ModuleNotFoundError as error:
                root = (error.name or "").partition(".")[0]
                if root not in ("pyspark", "pyarrow"):
                    raise
                raise MissingExtraError(root, "spark", f"kclient.spark.{name}") from error
        raise AttributeError(f"module 'kclient.spark' has no attribute {name!r}")
