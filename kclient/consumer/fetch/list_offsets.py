"""Finding offsets by time, at the start or at the end of partitions (ListOffsets)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from kclient.errors import BrokerConnectionError, ErrorCode, KafkaError, LeaderNotAvailableError, error_for
from kclient.protocol.messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kclient.types import OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kclient.cluster import Backoff, ClusterSnapshot
    from kclient.protocol.messages import ListOffsetsPartitionResponse, ListOffsetsResponse

_NOT_SUPPORTED_MEANS_ABSENT = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class Question:
    """What one broker is asked: an attempt, whose outcome counts only for the partitions that still wait for it.

    Args:
        node_id: The broker.
        wanted: The timestamp to search for in each partition; -1 is the end, -2 the start.
    """

    __slots__ = ("node_id", "wanted")

    def __init__(self, node_id: int, wanted: Mapping[TopicPartition, int]) -> None:
        self.node_id: int = node_id
        self.wanted: Mapping[TopicPartition, int] = wanted

    def request(self, snapshot: ClusterSnapshot, *, read_committed: bool, timeout_ms: int) -> ListOffsetsRequest:
        """The message; `timeout_ms` bounds what a broker takes to look in remote storage."""
        topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
        for tp, timestamp in self.wanted.items():
            epoch = snapshot.leader_epoch(tp)
            topics[tp.topic].append(
                ListOffsetsPartition(
                    partition_index=tp.partition,
                    current_leader_epoch=-1 if epoch is None else epoch,
                    timestamp=timestamp,
                )
            )
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(read_committed),
            topics=[ListOffsetsTopic(name=name, partitions=found) for name, found in topics.items()],
            timeout_ms=timeout_ms,
        )

    def read(self, response: ListOffsetsResponse) -> OffsetAnswer:
        """What the broker answered; a partition that it left out is one to ask for again."""
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        refused: dict[TopicPartition, KafkaError] = {}
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                code = partition.error_code
                if code and code != _NOT_SUPPORTED_MEANS_ABSENT:
                    refused[tp] = error_for(code, f"{tp}: {error_for(code).message}")
                else:
                    found[tp] = None if code else _offset(partition)
        for tp in self.wanted.keys() - found.keys() - refused.keys():
            refused[tp] = BrokerConnectionError(f"node {self.node_id} did not answer for {tp}")
        return OffsetAnswer(found, refused)


class OffsetAnswer(NamedTuple):
    """A broker's answer to a question."""

    found: dict[TopicPartition, OffsetAndTimestamp | None]
    """None where there is no such record."""
    refused: dict[TopicPartition, KafkaError]


def _offset(partition: ListOffsetsPartitionResponse) -> OffsetAndTimestamp | None:
    if partition.offset < 0:
        return None
    epoch = None if partition.leader_epoch < 0 else partition.leader_epoch
    return OffsetAndTimestamp(partition.offset, partition.timestamp, epoch)


def by_leader(
    partitions: Iterable[TopicPartition], snapshot: ClusterSnapshot
) -> tuple[dict[int, list[TopicPartition]], list[TopicPartition]]:
    """The partitions by the broker that leads them, and those whose leader is unknown."""
    led: dict[int, list[TopicPartition]] = defaultdict(list)
    leaderless = []
    for tp in partitions:
        leader = snapshot.leader_id(tp)
        if leader is None:
            leaderless.append(tp)
        else:
            led[leader].append(tp)
    return led, leaderless


def no_leader(partitions: Iterable[TopicPartition]) -> KafkaError:
    """Why partitions cannot be asked for anywhere."""
    told = ", ".join(map(str, sorted(partitions)[:5]))
    return LeaderNotAvailableError(f"No leader is known for {told}: does it exist?")


class OffsetSearch:
    """A search in several partitions, whose answers come from several brokers: a state machine without I/O or clock.

    All brokers are asked at the same time, and each partition goes its own way: what one broker refuses or never
    answers holds up no other. A partition whose leader moved meanwhile is asked for there.

    Args:
        wanted: The timestamp to search for in each partition; -1 is the end, -2 the start.
        backoff: How long a partition that was refused is not asked for.
    """

    def __init__(self, wanted: Mapping[TopicPartition, int], backoff: Backoff) -> None:
        self.wanted: Mapping[TopicPartition, int] = wanted
        self.found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        self.error: Exception | None = None
        """Why a partition was refused for good, or could not be asked for: the search is over."""
        self._backoff = backoff
        self._asked: dict[TopicPartition, Question] = {}
        self._retry_at: dict[TopicPartition, float] = {}
        self._failures: dict[TopicPartition, int] = defaultdict(int)
        self._problems: dict[TopicPartition, KafkaError] = {}

    @property
    def missing(self) -> list[TopicPartition]:
        """The partitions that are still to be found."""
        return [tp for tp in self.wanted if tp not in self.found]

    @property
    def silent(self) -> set[int]:
        """The brokers that were asked and have not answered yet."""
        return {self._asked[tp].node_id for tp in self.missing if tp in self._asked}

    @property
    def unasked(self) -> list[TopicPartition]:
        """The partitions that are missing, and that nobody is being asked for."""
        return [tp for tp in self.missing if tp not in self._asked]

    @property
    def problem(self) -> KafkaError | None:
        """Why one of those has to be asked for again."""
        return next((self._problems[tp] for tp in self.unasked if tp in self._problems), None)

    @property
    def over(self) -> bool:
        """Whether everything was found, or something will not be."""
        return self.error is not None or len(self.found) == len(self.wanted)

    def plan(self, snapshot: ClusterSnapshot, now: float) -> tuple[list[Question], list[TopicPartition]]:
        """What to ask now, and the partitions that wait for metadata because their leader is unknown."""
        waiting = [
            tp for tp in self.missing if not self._under_way(tp, snapshot) and self._retry_at.get(tp, now) <= now
        ]
        led, leaderless = by_leader(waiting, snapshot)
        questions = []
        for node_id, partitions in led.items():
            question = Question(node_id, {tp: self.wanted[tp] for tp in partitions})
            self._asked.update(dict.fromkeys(partitions, question))
            questions.append(question)
        for tp in leaderless:
            self._later(tp, now)
        return questions, leaderless

    def _under_way(self, tp: TopicPartition, snapshot: ClusterSnapshot) -> bool:
        question = self._asked.get(tp)
        return question is not None and snapshot.leader_id(tp) in {question.node_id, None}

    def next_retry(self, now: float) -> float | None:
        """When a partition that was refused may be asked for again."""
        times = [self._retry_at[tp] for tp in self.missing if tp not in self._asked and tp in self._retry_at]
        return min(times, default=None)

    def received(self, question: Question, answer: OffsetAnswer, now: float) -> bool:
        """A broker answered; whether fresh metadata are needed."""
        stale = False
        for tp in self._waiting_for(question):
            if tp in answer.refused:
                error = answer.refused[tp]
                stale = stale or error.refresh_metadata
                self._refused(tp, error, now)
            else:
                self.found[tp] = answer.found[tp]
        return stale

    def failed(self, question: Question, error: KafkaError, now: float) -> None:
        """A broker could not be asked, or did not answer."""
        for tp in self._waiting_for(question):
            self._refused(tp, error, now)

    def _waiting_for(self, question: Question) -> list[TopicPartition]:
        """The partitions that were not asked for elsewhere meanwhile; they wait no more."""
        waiting = [tp for tp in question.wanted if self._asked.get(tp) is question]
        for tp in waiting:
            del self._asked[tp]
        return waiting

    def _refused(self, tp: TopicPartition, error: KafkaError, now: float) -> None:
        if error.retriable:
            self._problems[tp] = error
            self._later(tp, now)
        else:
            self.error = self.error or error

    def leaderless(self, tp: TopicPartition, error: KafkaError | None) -> None:
        """Nobody is known to lead a partition; the error says why, if the metadata do."""
        if error is None:
            return
        self._problems[tp] = error
        if not error.retriable:
            self.error = error

    def _later(self, tp: TopicPartition, now: float) -> None:
        self._failures[tp] += 1
        self._retry_at[tp] = now + self._backoff.seconds(self._failures[tp])
