"""What a replay, or a mirror, keeps in committed offsets of its target, and what follows from it; no I/O here.

Two kinds, which both begin with its id. `docs/internals/replay.md` says why they suffice.

- A **claim**, one for each source topic: the target takes records of this topic, of this selection, from this run.
- A **position**, one for each source partition: the source's offset to go on at. It is committed in one transaction
  with the records before it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kclient.arguments import shown
from kclient.errors import ConfigError
from kclient.spark.pipelines.failures import PipelineError, ReplayError
from kclient.spark.pipelines.offset_points import OffsetPoint, points_of, points_text
from kclient.spark.told_offsets import told_with
from kclient.types import OffsetAndMetadata, TopicPartition

FORMAT = 1
"""Of the offsets' metadata; a newer one is refused."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,200}", re.ASCII)


class Work(NamedTuple):
    """What writes records once and in order: a replay, or a mirror.

    Attributes:
        noun: as errors call it.
        failure: what it raises where it cannot go on.
    """

    noun: str
    failure: type[PipelineError]


REPLAY = Work("replay", ReplayError)


class ReplayNames(NamedTuple):
    """The names that belong to a replay of one topic. Ids hold no colon, and neither do topics.

    Attributes:
        replay: the replay's id.
        topic: the source topic.
    """

    replay: str
    topic: str

    @property
    def claims(self) -> str:
        """The group of the claim."""
        return f"{self.replay}:{self.topic}"

    def transactional_id(self, partition: int) -> str:
        """Whose transactions have the records of a source partition: a newer attempt fences an older one."""
        return f"{self.replay}:{self.topic}:{partition}"

    def position(self, partition: int, target: str, anchors: int) -> tuple[str, TopicPartition]:
        """The group and the partition of the target whose offset is a source partition's position.

        Args:
            partition: The source partition.
            target: The target topic.
            anchors: How many partitions of it are used: offsets need a partition that exists.
        """
        return f"{self.replay}:{self.topic}:{partition // anchors}", TopicPartition(target, partition % anchors)


def check_id(replay: str, work: Work = REPLAY) -> None:
    """Raises `ConfigError` where no replay, or mirror, can have the id."""
    if not isinstance(replay, str) or not _ID.fullmatch(replay):
        raise ConfigError(
            f"a {work.noun}'s id has at most 200 letters, digits, dots, underscores and hyphens, and is not"
            f" {shown(replay)}"
        )


def fingerprint_of(selection: Mapping[str, Any]) -> str:
    """Of what is replayed and how, as 12 hexadecimal digits: a replay that goes on has the same."""
    return hashlib.sha256(json.dumps(selection, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Claim:
    """That a target takes the records of a source topic.

    Attributes:
        topic_id: which topic of that name.
        selection: the fingerprint of what is replayed and how.
        run: the run that claimed it last; tasks of other runs stop.
        partitions: how many source partitions have a position: those with lower numbers.
        anchors: how many partitions of the target hold positions.
        manifest: the number of the archive's newest manifest then; 0 of a mirror.
        target_id: the id of the target; empty where an older kclient has claimed it.
        origins: the clusters that a mirror's records came through, the last of which it reads from.
    """

    topic_id: str
    selection: str
    run: str
    partitions: int
    anchors: int
    manifest: int
    target_id: str = ""
    origins: tuple[str, ...] = ()

    def offset(self) -> OffsetAndMetadata:
        """As it is committed."""
        told: dict[str, Any] = {
            "format": FORMAT, "topic_id": self.topic_id, "selection": self.selection, "run": self.run,
            "partitions": self.partitions, "anchors": self.anchors, "target_id": self.target_id,
        }  # fmt: skip
        if self.origins:
            told["origins"] = list(self.origins)
        return OffsetAndMetadata(self.manifest, json.dumps(told, separators=(",", ":")))

    @classmethod
    def read(cls, group: str, offset: OffsetAndMetadata, work: Work = REPLAY) -> Claim:
        """As it was committed.

        Raises:
            PipelineError: It was not, or by a newer kclient; of the kind that the work raises.
        """
        told = told_with(group, offset, FORMAT, work.failure, _foreign(work))
        try:
            return cls(
                str(told["topic_id"]), str(told["selection"]), str(told["run"]), int(told["partitions"]),
                int(told["anchors"]), offset.offset, str(told.get("target_id", "")),
                tuple(map(str, told.get("origins", ()))),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError):
            raise _foreign(work)(group, offset) from None

    def check(self, names: ReplayNames, topic_id: str, selection: str, work: Work = REPLAY, remedy: str = "") -> None:
        """Refuse to go on with something else than what was begun.

        Args:
            names: Those of the work and its topic.
            topic_id: The source topic's id now.
            selection: The fingerprint now.
            work: Whose the claim is.
            remedy: What else can be done about another topic of the name.

        Raises:
            PipelineError: The topic or the selection is another one.
        """
        if self.topic_id != topic_id:
            raise work.failure(
                f"the {work.noun} {names.replay} has begun with another topic called {names.topic} (its id is"
                f" {self.topic_id}, and now {topic_id}): {remedy}give a new id, and a target without records"
            )
        if self.selection != selection:
            raise work.failure(
                f"the {work.noun} {names.replay} has begun with other times, offsets or another choice of partitions"
                f" for {names.topic}: go on with those, or give a new id, and a target without records"
            )


@dataclass(frozen=True)
class Position:
    """How far a source partition has come.

    Attributes:
        offset: the offset of the source to go on at.
        records: how many records the replay has written of it in all.
        manifest: the number of the archive's newest manifest then; 0 of a mirror.
        target_id: the id of the topic that has them; empty where an older kclient has committed it.
        points: which offsets of the target belong to which of the source, where that is noted.
    """

    offset: int
    records: int
    manifest: int
    target_id: str = ""
    points: tuple[OffsetPoint, ...] = ()

    def committed(self) -> OffsetAndMetadata:
        """As it is committed."""
        told: dict[str, Any] = {
            "format": FORMAT, "records": self.records, "manifest": self.manifest, "target_id": self.target_id,
        }  # fmt: skip
        if self.points:
            told["points"] = points_text(self.points)
        return OffsetAndMetadata(self.offset, json.dumps(told, separators=(",", ":")))

    @classmethod
    def read(cls, group: str, offset: OffsetAndMetadata, work: Work = REPLAY) -> Position:
        """As it was committed.

        Raises:
            PipelineError: It was not, or by a newer kclient; of the kind that the work raises.
        """
        told = told_with(group, offset, FORMAT, work.failure, _foreign(work))
        try:
            return cls(
                offset.offset, int(told["records"]), int(told["manifest"]), str(told.get("target_id", "")),
                points_of(str(told.get("points", ""))),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError):
            raise _foreign(work)(group, offset) from None


def check_target(names: ReplayNames, target: str, told: Claim | Position, target_id: str, work: Work = REPLAY) -> None:
    """Refuse what was told of a former topic of the target's name: its records are gone with that.

    Args:
        names: Of the work and its topic.
        target: The target's name.
        told: What is committed there.
        target_id: The target's id now.
        work: Whose it is.

    Raises:
        PipelineError: It is of another topic; of the kind that the work raises.
    """
    if told.target_id not in ("", target_id):
        raise work.failure(
            f"the target {target} was deleted and created again since the {work.noun} {names.replay} has written"
            f" {names.topic} to it (its id was {told.target_id}, and is {target_id}): what was written is gone;"
            " begin again with another id and a target without records"
        )


def _foreign(work: Work) -> Callable[[str, OffsetAndMetadata], PipelineError]:
    def failure(group: str, offset: OffsetAndMetadata) -> PipelineError:
        return work.failure(
            f"the group {group} has an offset that no {work.noun} has committed ({shown(offset.metadata)}): give the "
            f"{work.noun} another id"
        )

    return failure
