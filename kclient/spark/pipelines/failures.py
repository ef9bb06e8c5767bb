"""What pipelines raise; the error of each is made anew in the driver from what a task said."""

from __future__ import annotations

from kclient.errors import KafkaError


class PipelineError(KafkaError):
    """A pipeline could not do its work; the message says why, and what to do."""


class ReplayError(PipelineError):
    """A replay cannot go on without putting it at risk that each record is there once; or its target does not fit."""


class AuditError(PipelineError):
    """Two sides could not be compared."""


class CompactError(PipelineError):
    """A topic could not be compacted: its table, or its folder, is none to go on from; the former table is left."""


class MirrorError(PipelineError):
    """A mirror cannot go on without putting it at risk that each record is there once; or its target does not fit."""


class StatsError(PipelineError):
    """What a topic holds could not be counted."""
