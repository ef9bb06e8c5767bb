"""What is known of the cluster: brokers, topics, partitions, leaders, topic ids.

A `ClusterSnapshot` is immutable, so any thread may read it while the cache moves on to the next one. The
`MetadataCache` merges answers into snapshots and says when the next request is due; it takes the time as an
argument and does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, TypeVar

from kclient.arguments import shown
from kclient.cluster.interest import TopicInterest
from kclient.cluster.new_topics import NewTopics
from kclient.errors import ErrorCode, KafkaError, error_for
from kclient.types import Node, PartitionInfo, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from kclient.cluster.backoff import Backoff
    from kclient.protocol.messages import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic

T = TypeVar("T")

ZERO_ID = bytes(16)
"""The topic id that means "none": the broker is older than KIP-516."""


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition, with broker ids instead of nodes."""

    topic: str
    partition: int
    leader_id: int = -1
    """Id of the leading broker, or -1 while there is none."""
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic and its partitions by number."""

    name: str
    topic_id: bytes = ZERO_ID
    is_internal: bool = False
    partitions: Mapping[int, PartitionMetadata] = field(default_factory=dict)
    counted: bool = True
    """Whether they are numbered from 0 on, as Kafka's are: else nobody knows how many there are, and neither keys nor
    members of groups can be given any."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The cluster as it was known at one moment; never changes."""

    cluster_id: str | None = None
    controller_id: int = -1
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    """Error codes of topics that were asked for and could not be described."""
    names: Mapping[bytes, str] = field(default_factory=dict)
    """Topic names by topic id."""

    @property
    def controller(self) -> Node | None:
        """The controller (with KRaft: a broker that forwards to it), if known."""
        return self.nodes.get(self.controller_id)

    def partition(self, tp: TopicPartition) -> PartitionMetadata | None:
        """What is known of a partition."""
        topic = self.topics.get(tp[0])
        return None if topic is None else topic.partitions.get(tp[1])

    def leader_id(self, tp: TopicPartition) -> int | None:
        """Id of the partition's leader, or None if it is unknown or not a known broker."""
        found = self.partition(tp)
        if found is None or found.leader_id not in self.nodes:
            return None
        return found.leader_id

    def leader(self, tp: TopicPartition) -> Node | None:
        """The partition's leader, or None if it is unknown."""
        found = self.partition(tp)
        return None if found is None else self.nodes.get(found.leader_id)

    def leader_epoch(self, tp: TopicPartition) -> int | None:
        """The partition's leader epoch (KIP-320), or None if it is unknown."""
        found = self.partition(tp)
        return None if found is None or found.leader_epoch < 0 else found.leader_epoch

    def partition_count(self, topic: str) -> int:
        """Number of partitions, 0 if the topic is unknown."""
        found = self.topics.get(topic)
        return 0 if found is None else len(found.partitions)

    def racks(self, topic: str) -> list[set[str]]:
        """For each partition of a topic, by number, the racks of its replicas, as far as brokers tell them."""
        found = self.topics.get(topic)
        if found is None:
            return []
        racks = {node.id: node.rack for node in self.nodes.values() if node.rack is not None}
        return [
            {racks[replica] for replica in found.partitions[number].replicas if replica in racks}
            for number in sorted(found.partitions)
        ]

    def topic_id(self, topic: str) -> bytes:
        """The topic's id, or 16 zero bytes if it is unknown (KIP-516)."""
        found = self.topics.get(topic)
        return ZERO_ID if found is None else found.topic_id

    def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The topic's partitions as users see them, in order of their numbers; empty if unknown."""
        found = self.topics.get(topic)
        if found is None:
            return []
        return [self._info(found.partitions[number]) for number in sorted(found.partitions)]

    def _info(self, partition: PartitionMetadata) -> PartitionInfo:
        return PartitionInfo(
            topic=partition.topic,
            partition=partition.partition,
            leader=self.nodes.get(partition.leader_id),
            replicas=self._nodes(partition.replicas),
            in_sync_replicas=self._nodes(partition.isr),
            offline_replicas=self._nodes(partition.offline),
            leader_epoch=None if partition.leader_epoch < 0 else partition.leader_epoch,
        )

    def _nodes(self, ids: Iterable[int]) -> tuple[Node, ...]:
        # a replica on a broker that is down is not in the list of brokers; its id is all that is known
        return tuple(self.nodes.get(node) or Node(node, "", -1) for node in ids)


class MetadataCache:
    """Holds the newest snapshot, the topics of interest, and when to ask again.

    Args:
        max_age: Seconds after which metadata are fetched anew without need (`metadata.max.age.ms`).
        max_idle: Seconds after which a topic that nobody touched is forgotten (`metadata.max.idle.ms`);
            None keeps topics for ever.
        backoff: Delay between requests while they fail or bring nothing new.
        in_use: The topics that a call waits for, or that records wait to be sent to.
    """

    def __init__(
        self,
        *,
        max_age: float,
        backoff: Backoff,
        max_idle: float | None = None,
        in_use: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.snapshot: ClusterSnapshot = ClusterSnapshot()
        self.all_topics = False
        """Whether every topic of the cluster is of interest (pattern subscriptions)."""
        self.begun: int = 0
        """The number of the newest request."""
        self.answered: int = 0
        """The number of the newest request for all that is of interest that was answered: an answer tells nothing of
        what was asked for later."""
        self._max_age = max_age
        self._backoff = backoff
        self._interest = TopicInterest(max_idle, in_use)
        self._requested = True
        self._last_success: float | None = None
        self._allowed_at = -inf
        self._urgent = False
        self._new = NewTopics(self._interest, backoff)
        self._alone: list[str] = []
        """The topics of the newest request where it is for new ones only."""
        self._failures = 0

    # ------------------------------------------------------------------ topics of interest

    @property
    def topics(self) -> list[str]:
        """The topics of interest."""
        return self._interest.topics

    @property
    def updated_at(self) -> float | None:
        """When the last answer came; None before the first."""
        return self._last_success

    def track(self, topics: Iterable[str], now: float, *, create: bool = True) -> bool:
        """Add topics of interest, or mark them as used; see `TopicInterest.track`.

        Those that are new are asked for alone (KIP-526).

        Returns:
            Whether one of them is new.
        """
        fresh = self._interest.track(topics, now, create=create)
        self._new.add(fresh)
        return bool(fresh)

    def ask_anew(self, topics: Iterable[str], now: float) -> bool:
        """Forget that topics were refused, and ask for them again: access may have been granted.

        Returns:
            Whether there are such topics.
        """
        codes = self.snapshot.errors
        refused = [name for name in topics if name in codes and not error_for(codes[name]).retriable]
        if refused:
            errors = {name: code for name, code in codes.items() if name not in refused}
            self.snapshot = replace(self.snapshot, errors=errors)
            self._new.repeat(refused, now)
        return bool(refused)

    def track_only(self, topics: Iterable[str], now: float, *, create: bool = True) -> bool:
        """Replace the topics of interest; True if one of them is new."""
        fresh = self._interest.track_only(topics, now, create=create)
        self._leave_out()
        if fresh:
            self.request_update(urgent=True)
        return bool(fresh)

    def touch(self, topics: Iterable[str], now: float) -> None:
        """Mark topics of interest as used."""
        self._interest.touch(topics, now)

    def expire_topics(self, now: float) -> list[str]:
        """Forget the topics that were not used for `max_idle` seconds; returns them."""
        idle = self._interest.expire(now)
        if idle:
            self._leave_out()
        return idle

    def look_at(self, topics: Iterable[str]) -> None:
        """A call asks for topics once; they are of interest until `look_away`."""
        self._interest.look_at(topics)

    def look_away(self, topics: Iterable[str]) -> None:
        """Undo `look_at`."""
        self._interest.look_away(topics)
        self._leave_out()

    def to_create(self) -> set[str]:
        """The topics that asking for them is to create: they are missing, and somebody wants them."""
        return self._interest.to_create(self.snapshot.topics)

    def _kept(self, everything: bool, alone: bool) -> tuple[dict[str, TopicMetadata], dict[str, int]]:
        """Topics and errors that an answer adds to."""
        if everything:
            return {}, {}
        old = self.snapshot
        if alone:  # one of very many, perhaps: nothing is looked through for it
            return dict(old.topics), dict(old.errors)
        return self._still_of_interest(old.topics), self._still_of_interest(old.errors)

    def _still_of_interest(self, known: Mapping[str, T]) -> dict[str, T]:
        return {name: value for name, value in known.items() if name in self._interest}

    def _leave_out(self) -> None:
        """What is not refreshed any more leaves the snapshot, where it would soon be wrong."""
        snapshot, interest = self.snapshot, self._interest
        if self.all_topics or all(name in interest for name in (*snapshot.topics, *snapshot.errors)):
            return
        topics = self._still_of_interest(snapshot.topics)
        self.snapshot = replace(
            snapshot, topics=topics, errors=self._still_of_interest(snapshot.errors), names=_names(topics)
        )

    # ------------------------------------------------------------------ when to ask

    def request_update(self, *, urgent: bool = False) -> None:
        """Ask for all that is of interest; `urgent` skips the back-off since the last request."""
        self._requested = True
        self._urgent = self._urgent or urgent

    def next_update(self, now: float) -> float:
        """When the next request is due: `now` or earlier means at once."""
        due = self._next_full(now)
        return due if self.all_topics else min(due, self._new.next(now))

    def _next_full(self, now: float) -> float:
        """When all that is of interest is to be asked for."""
        if self._requested or self._last_success is None:
            return now if self._urgent else max(self._allowed_at, now)
        return max(self._last_success + self._max_age, self._allowed_at, now)

    @property
    def failures(self) -> int:
        """Failed requests since the last answer."""
        return self._failures

    # ------------------------------------------------------------------ answers

    def begin_update(self, now: float) -> list[str] | None:
        """A request goes out; what is asked for from now on needs another one.

        Returns:
            The topics to ask for, of which `update` is told: only those that are new, where the others need not be
            asked for yet; None for every topic of the cluster.
        """
        self.begun += 1
        if not self.all_topics and self._next_full(now) > now:
            self._alone = self._new.take(now)
            if self._alone:
                return list(self._alone)
        self._alone = []
        self._new.take_all()
        self._requested = self._urgent = False
        self._delay(now)
        return None if self.all_topics else self.topics

    def fail_update(self, now: float) -> None:
        """The request failed."""
        self._failures += 1
        if self._alone:
            self._new.lacking(self._alone, now)
            return
        self._requested = True
        self._delay(now)

    def _delay(self, now: float) -> None:
        self._allowed_at = now + self._backoff.seconds(max(self._failures, 1))

    def update(self, response: MetadataResponse, now: float, *, asked: Iterable[str] | None) -> ClusterSnapshot:
        """Merge an answer; topics that are of interest no more are left out.

        Args:
            response: The broker's answer.
            now: Monotonic time in seconds.
            asked: The topics that were asked for; None if all were, so that topics missing are gone.

        Returns:
            The new snapshot.
        """
        old, everything, alone = self.snapshot, asked is None, bool(self._alone)
        topics, errors = self._kept(everything, alone)
        nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        lacking = {name for name in asked or () if (alone or name not in topics) and name in self._interest}
        again = False
        # of a topic that is described twice the last counts
        for name, described in {topic.name: topic for topic in response.topics}.items():
            if name is None or not (everything or name in self._interest):
                continue
            if described.error_code:
                errors[name] = described.error_code
                passes = error_for(described.error_code).refresh_metadata
                if described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    topics.pop(name, None)
            else:
                errors.pop(name, None)
                self._interest.found(name)
                topics[name] = _merge_topic(old.topics.get(name), described)
                # a leader that is not there is none
                passes = _is_odd(described) or any(p.leader_id not in nodes for p in topics[name].partitions.values())
            if not passes:
                self._new.settled(name)
                lacking.discard(name)
            elif alone or not (everything or name in old.topics):
                lacking.add(name)
            else:
                again = True
        self.snapshot = ClusterSnapshot(
            cluster_id=response.cluster_id if response.cluster_id is not None else old.cluster_id,
            controller_id=response.controller_id,
            nodes=old.nodes if nodes == old.nodes else nodes,  # one object, which whoever compares sees at once
            topics=topics,
            errors=errors,
            names=_names_with(old, topics, response.topics) if alone else _names(topics),
        )
        # topics that are being created, say: those that are known need not be asked for with them
        self._new.lacking(lacking, now)
        if alone:
            return self.snapshot  # how it stands with the others is not known
        self.answered = self.begun
        self._last_success = now
        # a topic that was deleted or a partition that lost its leader: ask again, ever less often
        self._failures = self._failures + 1 if again else 0
        self._requested = self._requested or again
        self._delay(now)
        return self.snapshot

    def update_leaders(
        self,
        leaders: Mapping[TopicPartition, tuple[int, int]],
        nodes: Iterable[Node] = (),
        *,
        asked: Mapping[bytes, str],
    ) -> set[TopicPartition]:
        """Take over leaders that a broker named in a Produce or Fetch answer (KIP-951).

        Args:
            leaders: Leader id and leader epoch by partition.
            nodes: Brokers that the answer described.
            asked: The topics of the request, their names by the ids that they had then: the epochs of one that was
                deleted and created again say nothing of its namesake, whose own begin anew.

        Returns:
            The partitions whose leader changed.
        """
        known = {**self.snapshot.nodes, **{node.id: node for node in nodes}}
        topics = dict(self.snapshot.topics)
        changed: set[TopicPartition] = set()
        ids = {name: topic_id for topic_id, name in asked.items() if topic_id != ZERO_ID}
        for tp, (leader, epoch) in leaders.items():
            current = self.snapshot.partition(tp)
            if ids.get(tp.topic, ZERO_ID) not in {ZERO_ID, self.snapshot.topic_id(tp.topic)}:
                continue
            if current is None or leader not in known or epoch <= current.leader_epoch:
                continue
            topic = topics[tp.topic]
            moved = replace(current, leader_id=leader, leader_epoch=epoch, error_code=0)
            topics[tp.topic] = replace(topic, partitions={**topic.partitions, tp.partition: moved})
            changed.add(tp)
        if changed:
            self.snapshot = replace(self.snapshot, nodes=known, topics=topics)
        return changed

    def rebootstrap(self) -> None:
        """Forget the brokers, so that the next request goes to the bootstrap servers (KIP-899)."""
        # those that say so themselves, again and again, are not to be asked without a pause
        self.request_update(urgent=bool(self.snapshot.nodes))
        self.snapshot = replace(self.snapshot, nodes={}, controller_id=-1)


def topic_error(snapshot: ClusterSnapshot, topic: str) -> KafkaError | None:
    """The error of a topic that was asked for, or None; its text names the topic."""
    code = snapshot.errors.get(topic)
    if code is None:
        return None
    error = error_for(code)
    return error_for(code, f"Topic {shown(topic)}: {error.message}")


def _names(topics: Mapping[str, TopicMetadata]) -> dict[bytes, str]:
    return {topic.topic_id: name for name, topic in topics.items() if topic.topic_id != ZERO_ID}


def _names_with(
    old: ClusterSnapshot, topics: Mapping[str, TopicMetadata], described: Iterable[MetadataResponseTopic]
) -> dict[bytes, str]:
    """The names by id where only topics that were described have changed."""
    names = dict(old.names)
    for topic in described:
        name = topic.name or ""
        if name in old.topics:
            names.pop(old.topics[name].topic_id, None)
        if name in topics and topics[name].topic_id != ZERO_ID:
            names[topics[name].topic_id] = name
    return names


def what_lacks(snapshot: ClusterSnapshot, topic: str) -> str:
    """Why a topic that brokers were asked for cannot be used, though they named no error; empty for nothing."""
    found = snapshot.topics.get(topic)
    if found is None:
        return "the brokers' answers leave it out" if snapshot.nodes and topic not in snapshot.errors else ""
    if not found.partitions:
        return "the brokers describe it without partitions"
    if not found.counted:
        return "the brokers do not number its partitions 0, 1, 2 and so on"
    return ""


def _is_odd(described: MetadataResponseTopic) -> bool:
    """Whether a topic lacks partitions, or cannot be as it is described."""
    return not _counted({partition.partition_index for partition in described.partitions})


def _counted(numbers: Collection[int]) -> bool:
    """Whether there are numbers, and they begin with 0 and leave none out."""
    return bool(numbers) and min(numbers) == 0 and max(numbers) == len(numbers) - 1


def _merge_topic(old: TopicMetadata | None, new: MetadataResponseTopic) -> TopicMetadata:
    """The topic as described, except partitions of which an answer with a newer leader epoch is known.

    Of a description that cannot be true, as there are numbers below 0 or left out, only the leaders of partitions that
    are known are believed.
    """
    name = new.name or ""
    same = old is not None and (old.topic_id == new.topic_id or ZERO_ID in {old.topic_id, new.topic_id})
    known = old.partitions if same and old is not None else {}
    partitions: dict[int, PartitionMetadata] = {}
    for described in new.partitions:
        number = described.partition_index
        current = known.get(number)
        if current is not None and 0 <= described.leader_epoch < current.leader_epoch:
            partitions[number] = current  # a broker that lags behind
        else:
            partitions[number] = _partition(name, described)
    counted = not partitions or _counted(partitions)
    if not counted:
        if same and old is not None and old.partitions and old.counted:
            partitions = {number: partitions.get(number, current) for number, current in known.items()}
            counted = True
        else:
            partitions = {number: partition for number, partition in partitions.items() if number >= 0}
    return TopicMetadata(name, bytes(new.topic_id), new.is_internal, partitions, counted)


def _partition(topic: str, described: MetadataResponsePartition) -> PartitionMetadata:
    return PartitionMetadata(
        topic=topic,
        partition=described.partition_index,
        leader_id=described.leader_id,
        leader_epoch=described.leader_epoch,
        replicas=tuple(described.replica_nodes),
        isr=tuple(described.isr_nodes),
        offline=tuple(described.offline_replicas),
        error_code=described.error_code,
    )
