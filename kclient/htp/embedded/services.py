"""What the logs of a broker share, and the small values they pass around."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kclient.htp.embedded.handles import OpenFiles
    from kclient.htp.embedded.index_memory import IndexMemory
    from kclient.htp.embedded.liveness import DiskLiveness
    from kclient.htp.embedded.recovery import SyncCheckpoint
    from kclient.htp.embedded.segment import Segment
    from kclient.htp.embedded.syncer import Syncer, SyncPlan
    from kclient.htp.embedded.watermark import Watermark


class SyncedLog(Protocol):
    """A log as it is synced and checkpointed; see `TopicLog`."""

    name: str
    fence: int
    key: str | None
    checkpoint_due: bool

    def plan(self) -> SyncPlan | None: ...

    def checkpoint(self, *, trusted: bool = True) -> SyncCheckpoint: ...


class CheckpointSoon(Protocol):
    """Has the checkpoint of a log written, soon."""

    def __call__(self, log: SyncedLog, *, trusted: bool = True) -> object:
        """`trusted` is as for `TopicLog.checkpoint`."""


@dataclass(slots=True, frozen=True)
class Services:
    """What the logs of a broker share."""

    open_files: OpenFiles
    syncer: Syncer
    durability: str
    checkpoint: CheckpointSoon
    want_sync: Callable[[SyncedLog], object]
    """Has the plan of a log carried out, soon: many appends in one turn of the event loop are one plan."""
    indexes: IndexMemory
    """Where the indexes of segments count."""
    watermark: Watermark
    """Whether there is space for messages."""
    liveness: DiskLiveness
    """Whether the disk answers."""


class LogPlace(NamedTuple):
    """A place in a log."""

    ordinal: int
    """Everything below is before it."""
    segment: Segment
    position: int
    """Bytes of the segment before it."""


class Covered(NamedTuple):
    """What a plan covers (its `detail`)."""

    generation: int
    """Of the log; another one after a sync failed, so that plans of before are known as such."""
    segments: tuple[Segment, ...]
    position: int
    """Bytes of the last of the segments."""
    entries: int
    """Segments created so far, whose entries in the directory are covered too."""
    number: int
    """Which plan of the log it is, from 1 on."""
