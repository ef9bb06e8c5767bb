"""The target of a replay or a mirror, as the driver sees it: what it is, whether it may be written, whose it is."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kclient.config import ConsumerConfig
from kclient.errors import (
    ClusterAuthorizationError,
    GroupIdNotFoundError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionalIdAuthorizationError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from kclient.spark.cluster import LiveCluster, open_admin
from kclient.spark.pipelines.failures import PipelineError
from kclient.spark.pipelines.replay_records import REPLAY, Claim, Position, ReplayNames, Work, check_target
from kclient.spark.pipelines.replay_tasks import CLIENT, Replayed, SourcePartition, check_targets
from kclient.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kclient.sync import Admin

logger: logging.Logger = logging.getLogger("kclient.spark")

_LOOK_S = 60.0
"""How long the target is searched for records of others."""
_MADE_S = 20.0
"""How long brokers may take to tell of a topic that was made."""
_PAUSE_S = 0.1
_GIVE_UP_S = 5.0
"""How long whoever ends a run waits for brokers."""


@dataclass(frozen=True)
class TargetPlan:
    """What is wanted of a target for one source topic.

    Attributes:
        topic: the source topic.
        topic_id: its id.
        target: the topic that its records go to.
        selection: the fingerprint of what is replayed.
        starts: by source partition, where it begins.
        anchors: how many partitions of the target hold positions.
        claim: what is claimed already.
        target_id: the target's id.
        origins: the clusters that the records came through, where the claim holds them.
        anew: whether all positions are to begin anew: the source topic is another one of that name.
    """

    topic: str
    topic_id: str
    target: str
    selection: str
    starts: Mapping[int, int]
    anchors: int
    claim: Claim | None = None
    target_id: str = ""
    origins: tuple[str, ...] = ()
    anew: bool = False

    @property
    def count(self) -> int:
        """How many source partitions there are."""
        return max(self.starts, default=-1) + 1


class ReplayTarget:
    """The cluster that is written to; `with` closes what was opened.

    Args:
        settings: The producer's.
        asking: Those of other clients, who take what they know of them.
        replay: The replay's id, or the mirror's.
        work: Which of them it is.
        restarts: Whether a topic that was created again is begun anew, behind the records of the former one.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        asking: Mapping[str, str],
        replay: str,
        work: Work = REPLAY,
        *,
        restarts: bool = False,
    ) -> None:
        self._work = work
        self._restarts = restarts
        self._settings = settings
        self._asking = asking
        self._replay = replay
        self._open = ExitStack()
        self._admin_client: Admin | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin_client = None
        self._open.__exit__(kind, error, trace)

    @property
    def _admin(self) -> Admin:
        if self._admin_client is None:
            self._admin_client = self._open.enter_context(open_admin(self._asking))
        return self._admin_client

    def plans(
        self,
        wanted: Mapping[str, tuple[str, str, Sequence[SourcePartition]]],
        starts: Mapping[tuple[str, int], int],
        *,
        keep_partitions: bool,
        origins: Mapping[str, tuple[str, ...]] | None = None,
    ) -> list[TargetPlan]:
        """What is wanted, where the targets can take it.

        Args:
            wanted: By source topic: the target, the selection's fingerprint, and the partitions.
            starts: By source topic and partition, where those begin that are replayed.
            keep_partitions: Whether partitions have to be there under their numbers.
            origins: By source topic, the clusters that its records came through. Where they are given the targets' ids
                are noted, too.

        Raises:
            UnknownTopicOrPartitionError: a target does not exist.
            PipelineError: a target has too few partitions, or the work was begun with other arguments.
        """
        counts, ids = self._counts({target for target, _, _ in wanted.values()}, wanted)
        found = []
        for topic, (target, selection, partitions) in wanted.items():
            own = {number: start for (name, number), start in starts.items() if name == topic}
            topic_id = partitions[0].topic_id if partitions else ""
            plan = TargetPlan(
                topic, topic_id, target, selection, own, counts[target], target_id=ids[target],
                origins=origins[topic] if origins is not None else (),
            )  # fmt: skip
            if keep_partitions and plan.count > counts[target]:
                if self._work is not REPLAY:
                    raise self._changed(target)
                raise self._work.failure(
                    f"{target} has {counts[target]} partitions, and the archive has {plan.count} of {topic}: add"
                    f" partitions (kclient topics alter, or create it with {plan.count}), or let the partitioner choose"
                    " by --repartition (keep_partitions=False)"
                )
            found.append(self._with_claim(plan, stable=False))
        return found

    def _changed(self, target: str) -> PipelineError:
        return self._work.failure(
            f"{target} was deleted, or created again, since this run of the {self._work.noun} {self._replay} has looked"
            " at it; run again"
        )

    def _counts(
        self, targets: Collection[str], wanted: Mapping[str, tuple[str, str, Sequence[SourcePartition]]]
    ) -> tuple[dict[str, int], dict[str, str]]:
        """How many partitions the targets have, and their ids."""
        listed = {each.name for each in self._admin.list_topics(include_internal=True)}
        for target in sorted(targets):
            if target not in listed:
                if self._work is not REPLAY:
                    raise self._changed(target)
                need = max((each.partition + 1 for to, _, all_of in wanted.values() if to == target for each in all_of),
                           default=1)  # fmt: skip
                raise UnknownTopicOrPartitionError(
                    f"no such topic: {target}; create it first, as a replay makes none: kclient topics create {target}"
                    f" --partitions {need}"
                )
        described = self._admin.describe_topics(sorted(targets)) if targets else {}
        counts = {name: len(each.partitions) for name, each in described.items()}
        return counts, {name: each.topic_id for name, each in described.items()}

    def _with_claim(self, plan: TargetPlan, *, stable: bool = True) -> TargetPlan:
        """The plan with its claim; `stable` waits for one about to be committed, which only the driver's id can end."""
        names = ReplayNames(self._replay, plan.topic)
        anchor = TopicPartition(plan.target, 0)
        found = dict(self._admin.list_group_offsets(names.claims))
        if stable:
            found.update(self._admin.list_group_offsets(names.claims, [anchor], require_stable=True))
        others = sorted(tp.topic for tp in found if tp != anchor)
        if others:
            raise self._work.failure(
                f"the {self._work.noun} {self._replay} has written {plan.topic} to {others[0]} before, not to"
                f" {plan.target}: go on with that target, or give a new id"
            )
        if anchor not in found:
            return plan
        claim = Claim.read(names.claims, found[anchor], self._work)
        anew = self._restarts and claim.topic_id != plan.topic_id
        remedy = (
            ""
            if self._work is REPLAY
            else "write the new topic behind the former one's records by --restart-recreated (restart_recreated=True),"
            " or "
        )
        claim.check(names, claim.topic_id if anew else plan.topic_id, plan.selection, self._work, remedy)
        check_target(names, plan.target, claim, plan.target_id, self._work)
        return replace(plan, claim=claim, anchors=claim.anchors, anew=anew)

    def warnings(self, plans: Sequence[TargetPlan]) -> list[str]:
        """What the targets will do to records, by their settings."""
        from kclient import ConfigResource, ConfigResourceType

        found = []
        for target in sorted({plan.target for plan in plans}):
            resource = ConfigResource(ConfigResourceType.TOPIC, target)
            try:
                entries = self._admin.describe_configs([resource])[resource]
            except KafkaError as error:
                logger.info("the settings of %s are not told: %s", target, error)
                continue
            values = {name: entry.value for name, entry in entries.items()}
            if values.get("message.timestamp.type") == "LogAppendTime":
                found.append(
                    f"{target} gives records the time when they arrive (message.timestamp.type=LogAppendTime): the"
                    " original timestamps are lost"
                )
            if "delete" in (values.get("cleanup.policy") or "delete") and values.get("retention.ms", "-1") != "-1":
                found.append(
                    f"{target} deletes records that are older than {_span(values['retention.ms'])} by their timestamps"
                    " (retention.ms), and those of an archive may be: set it to -1 to keep them"
                )
            most = values.get("retention.bytes") or "-1"
            if "delete" in (values.get("cleanup.policy") or "delete") and most != "-1":
                found.append(
                    f"{target} deletes the oldest records of a partition that has more than {most} bytes"
                    " (retention.bytes): set it to -1 to keep them"
                )
            if "compact" in (values.get("cleanup.policy") or ""):
                found.append(
                    f"{target} is compacted (cleanup.policy={values['cleanup.policy']}): of the records of one key it"
                    " keeps the last, and it refuses records without a key"
                )
        return found

    def await_made(self, wanted: Mapping[str, int]) -> None:
        """Wait for topics that have just been made, or have got partitions: brokers learn of it a moment later.

        Args:
            wanted: By target, how many partitions it has to have.

        Raises:
            PipelineError: they are not there, however long that is waited for.
        """
        deadline = time.monotonic() + _MADE_S
        with LiveCluster(self._asking) as cluster:
            while True:
                there = cluster.topics(wanted)
                late = [name for name in wanted if name not in there or len(there[name].partitions) < wanted[name]]
                if not late:
                    return
                if time.monotonic() > deadline:
                    raise self._changed(late[0])
                time.sleep(_PAUSE_S)

    # ------------------------------------------------------------------ claims

    def look(self, plans: Sequence[TargetPlan], *, append: bool) -> dict[tuple[str, int], Position]:
        """As `claim` and `positions`, but nothing is written."""
        self._check_free(plans, append=append)
        return self.positions([plan for plan in plans if plan.claim is not None])

    def claim(self, plans: Sequence[TargetPlan], run: str, manifest: int, *, append: bool) -> list[TargetPlan]:
        """Claim the targets for this run: claims, and positions of partitions that had none, in one transaction.

        Raises:
            PipelineError: a target has records of others, or another run begins at the same time.
        """
        from kclient.sync import Producer

        own = {"transactional.id": self._replay}
        try:
            with Producer({**CLIENT, **self._settings, **own}) as producer:
                producer.init_transactions()  # from here on no older run can claim anything
                plans = [self._with_claim(plan) for plan in plans]
                self._check_free(plans, append=append)
                new = [] if append else [plan for plan in plans if plan.claim is None]
                self._check_unclaimed(new)
                producer.begin_transaction()
                for group, offsets in self._claims(plans, run, manifest).items():
                    producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group))
                producer.commit_transaction()
                self._check_sole(new)
        except ProducerFencedError as error:
            raise self._work.failure(
                f"another run begins with the {self._work.noun} {self._replay}; this one has written nothing"
            ) from error
        except (UnsupportedVersionError, TransactionalIdAuthorizationError, ClusterAuthorizationError) as error:
            raise self._work.failure(
                f"the brokers do not allow the transactions that a {self._work.noun} needs ({error}): let this user"
                f" write with transactional ids that begin with {self._replay}, or use newer brokers"
            ) from error
        return [self._with_claim(plan) for plan in plans]

    def _claims(
        self, plans: Sequence[TargetPlan], run: str, manifest: int
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = defaultdict(dict)
        for plan in plans:
            names = ReplayNames(self._replay, plan.topic)
            known = plan.claim.partitions if plan.claim and not plan.anew else 0
            claim = Claim(
                plan.topic_id, plan.selection, run, max(known, plan.count), plan.anchors, manifest, plan.target_id,
                plan.origins,
            )  # fmt: skip
            found[names.claims][TopicPartition(plan.target, 0)] = claim.offset()
            for number in range(known, plan.count):
                group, anchor = names.position(number, plan.target, plan.anchors)
                found[group][anchor] = Position(plan.starts.get(number, 0), 0, manifest, plan.target_id).committed()
        return found

    def _check_free(self, plans: Sequence[TargetPlan], *, append: bool) -> None:
        ours = {plan.target for plan in plans if plan.claim is not None}
        for target in sorted({plan.target for plan in plans} - ours):
            if not append:
                self._check_empty(target)

    def _check_unclaimed(self, plans: Sequence[TargetPlan]) -> None:
        """See to it that nobody else has begun to write to these targets.

        Raises:
            PipelineError: somebody has, with another id.
        """
        anchors = {TopicPartition(plan.target, 0): plan.target_id for plan in plans}
        groups = self._admin.list_groups().complete() if anchors else []
        for group in (each.group_id for each in groups):
            replay, colon, topic = group.partition(":")
            if not colon or ":" in topic or replay == self._replay:
                continue
            with suppress(GroupIdNotFoundError):  # it has just gone, or is of a type that commits none
                for anchor, offset in self._admin.list_group_offsets(group).items():
                    if anchor in anchors and _claims(group, offset, anchors[anchor]):
                        raise self._work.failure(
                            f"{anchor.topic} is written by {replay} already, from {topic}, and its records would be"
                            f" mixed with those of the {self._work.noun} {self._replay}: choose another target; or,"
                            f" where {replay} is given up for good, delete its claim: kclient groups delete {group}"
                        )

    def _check_sole(self, plans: Sequence[TargetPlan]) -> None:
        """As before the claim: of two that claim at once, the later one at least sees the other's. It withdraws."""
        own = [self._with_claim(plan) for plan in plans]  # waits until everybody sees them: a commit is answered before
        try:
            self._check_unclaimed(own)
        except PipelineError:
            mine = {ReplayNames(self._replay, plan.topic).claims for plan in own}
            for group in (each.group_id for each in self._admin.list_groups().complete()):
                if group in mine or group.rpartition(":")[0] in mine:
                    with suppress(GroupIdNotFoundError):
                        self._admin.delete_groups([group])
            raise

    def _check_empty(self, target: str) -> None:
        settings = {name: value for name, value in self._asking.items() if name in ConsumerConfig.settings()}
        way_out = (
            " write behind them by --append (append=True)"
            if self._work is REPLAY
            else " another name by --prefix or --rename"
        )
        refused = (
            f"the target {target} has records that the {self._work.noun} {self._replay} has not written: choose an"
            f" empty topic, or{way_out}; where this {self._work.noun} has been there, its committed offsets have"
            " expired (offsets.retention.minutes), and going on would write records twice"
        )
        with LiveCluster({**settings, "isolation.level": "read_committed"}) as cluster:
            count = len(self._admin.describe_topics([target])[target].partitions)
            partitions = [TopicPartition(target, number) for number in range(count)]
            starts, ends = cluster.beginning_offsets(partitions), cluster.end_offsets(partitions)
            tops = cluster.high_watermarks(partitions)
            if any(ends[tp] < tops[tp] for tp in partitions):  # somebody has a transaction open
                raise self._work.failure(refused)
            left = [tp for tp in partitions if starts[tp] < ends[tp]]
            if not left:
                return
            consumer, deadline = cluster.consumer, time.monotonic() + _LOOK_S
            consumer.assign(left)
            for tp in left:
                consumer.seek(tp, starts[tp])
            while any(consumer.position(tp) < ends[tp] for tp in left):  # there may be markers, or aborted records only
                if any(consumer.poll(timeout=1.0)):
                    raise self._work.failure(refused)
                if time.monotonic() > deadline:
                    hint = "; say --append if it has none but the replay's" if self._work is REPLAY else ""
                    raise KafkaTimeoutError(
                        f"{target} could not be looked through for records within {_LOOK_S:.0f} s{hint}"
                    )

    def check(self, plans: Sequence[TargetPlan]) -> None:
        """Whether the targets are still those that were claimed: all that was written is there.

        Raises:
            ReplayError: one was deleted, and records went with it.
        """
        with LiveCluster(self._asking) as cluster:
            check_targets(cluster, self._replay, {plan.target: plan.target_id for plan in plans}, self._work)

    def give_up(self, plans: Sequence[TargetPlan], run: str, todo: Sequence[Replayed]) -> None:
        """A run has ended amid its work: abort what its tasks have open, which readers would wait for until it expires.

        Tasks that are not over yet can commit nothing any more. Nothing is done where another run goes on, or where
        brokers do not answer.
        """
        try:
            own = {plan.topic for plan in plans if self._claimed_by(plan) == run}
            ids = [
                ReplayNames(self._replay, each.source.topic).transactional_id(each.source.partition)
                for each in todo
                if each.source.topic in own
            ]
            self._admin.fence_producers(ids, timeout=_GIVE_UP_S)
        except KafkaError as error:
            logger.info("what the tasks of %s have open is left to the next run: %s", self._replay, error)

    def _claimed_by(self, plan: TargetPlan) -> str | None:
        names, anchor = ReplayNames(self._replay, plan.topic), TopicPartition(plan.target, 0)
        found = self._admin.list_group_offsets(names.claims, [anchor], timeout=_GIVE_UP_S).get(anchor)
        return None if found is None else Claim.read(names.claims, found, self._work).run

    # ------------------------------------------------------------------ positions

    def positions(self, plans: Sequence[TargetPlan], *, stable: bool = False) -> dict[tuple[str, int], Position]:
        """By source topic and partition, where it is.

        Args:
            plans: What is wanted.
            stable: Wait for positions that are about to be committed: a commit is answered before brokers have written
                it everywhere.

        Raises:
            PipelineError: one is gone, or was committed by others.
        """
        found = {}
        for plan in plans:
            names = ReplayNames(self._replay, plan.topic)
            places = {number: names.position(number, plan.target, plan.anchors) for number in plan.starts}
            anchors: dict[str, list[TopicPartition]] = defaultdict(list)
            for group, anchor in places.values():
                anchors[group].append(anchor)
            offsets = {
                group: self._admin.list_group_offsets(group, own if stable else None, require_stable=stable)
                for group, own in anchors.items()
            }
            for number, (group, anchor) in places.items():
                if anchor in offsets[group]:
                    found[plan.topic, number] = Position.read(group, offsets[group][anchor], self._work)
                elif plan.claim is not None and number < plan.claim.partitions:
                    raise self._work.failure(
                        f"the position of {plan.topic}-{number} in the {self._work.noun} {self._replay} is gone:"
                        " committed offsets expire after offsets.retention.minutes of the brokers, or somebody has"
                        f" deleted the group {group}; begin again with another id and a target without records"
                    )
        return found

    def reached(self, todo: Sequence[Replayed]) -> dict[tuple[str, int], int]:
        """The offsets that partitions are at, as far as they can be seen."""
        found = {}
        by_group: dict[str, dict[TopicPartition, tuple[str, int]]] = defaultdict(dict)
        for each in todo:
            names = ReplayNames(self._replay, each.source.topic)
            group, anchor = names.position(each.source.partition, each.target, each.anchors)
            by_group[group][anchor] = (each.source.topic, each.source.partition)
        for group, keys in by_group.items():
            for anchor, offset in self._admin.list_group_offsets(group).items():
                if anchor in keys:
                    found[keys[anchor]] = offset.offset
        return found


def _claims(group: str, offset: OffsetAndMetadata, target_id: str) -> bool:
    """Whether a group's offset is a claim of the topic that has this id."""
    try:
        return Claim.read(group, offset).target_id in ("", target_id)
    except PipelineError:  # a group of others may have such a name
        return False


def _span(milliseconds: str | None) -> str:
    days = int(milliseconds or 0) / 86_400_000
    return f"{days:.0f} days" if days >= 1 else f"{int(milliseconds or 0) / 1000:.0f} s"
