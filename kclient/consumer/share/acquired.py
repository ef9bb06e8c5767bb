"""Records that a broker holds for this consumer, from the answer that brought them to their acknowledgement."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kclient.consumer.share.model import GAP, AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from kclient.consumer.share.model import SharePartition
    from kclient.errors import KafkaError
    from kclient.types import Buffer, TopicPartition


class Acquired:
    """What one answer brought of one partition. Each offset of it goes one way:

    undelivered -> pending (the user has it) -> chosen (the user has said what became of it) -> sent; and where it is
    renewed, from there to renewing and, when the broker has answered, to renewed, which is chosen or pending again.

    Args:
        partition: Of which partition.
        node_id: Who holds it.
        session: Number of the share session in which that was.
        data: Record batches, perhaps of other records as well.
        ranges: First and last offset that were acquired, and how often these were delivered; ascending.
        expires: When the acquisition lock is over, on the clock.
    """

    __slots__ = (
        "_chosen",
        "_firsts",
        "data",
        "expires",
        "lost",
        "node_id",
        "partition",
        "pending",
        "position",
        "ranges",
        "renewed",
        "renewed_until",
        "renewing",
        "session",
    )

    def __init__(
        self,
        partition: SharePartition,
        node_id: int,
        session: int,
        data: Buffer,
        ranges: Sequence[tuple[int, int, int]],
        expires: float,
    ) -> None:
        self.partition: SharePartition = partition
        self.node_id: int = node_id
        self.session: int = session
        self.data: Buffer = data
        self.ranges: Sequence[tuple[int, int, int]] = ranges
        self.expires: float = expires
        self.renewed_until: float = expires
        """When the lock of those is over that were renewed."""
        self.position: int = ranges[0][0]
        """From here on nothing was delivered."""
        self.pending: set[int] = set()
        self.renewing: set[int] = set()
        self.renewed: set[int] = set()
        self.lost: KafkaError | None = None
        """Why the broker holds them no more, as far as that is known."""
        self._chosen: dict[int, int] = {}
        self._firsts = [first for first, _, _ in ranges]

    # ------------------------------------------------------------------ offsets

    @property
    def end(self) -> int:
        """The offset behind the last one that was acquired."""
        return self.ranges[-1][1] + 1

    @property
    def delivered(self) -> bool:
        """Whether all of it was."""
        return self.position >= self.end

    @property
    def settled(self) -> bool:
        """Whether nothing is to be done about it any more."""
        return self.delivered and not (self.pending or self._chosen or self.renewing or self.renewed)

    def between(self, start: int, end: int) -> Iterable[tuple[int, int, int]]:
        """The acquired ranges from `start` on and before `end`, cut to that."""
        index = max(bisect_right(self._firsts, start) - 1, 0)
        for first, last, count in self.ranges[index:]:
            if first >= end:
                break
            if last >= start:
                yield max(first, start), min(last, end - 1), count

    # ------------------------------------------------------------------ what is said of them

    @property
    def has_chosen(self) -> bool:
        """Whether there is something to be sent."""
        return bool(self._chosen)

    def deliver(self, offsets: Sequence[int], position: int) -> None:
        """The user has got these; what lies between them was no record.

        Args:
            offsets: Those of records, ascending.
            position: Where the rest begins.
        """
        self._fill_gaps(offsets, self.position, position)
        self.pending.update(offsets)
        self.position = position

    def _fill_gaps(self, found: Sequence[int], start: int, end: int) -> None:
        for first, last, _ in self.between(start, end):
            lower, upper = bisect_left(found, first), bisect_right(found, last)
            if upper - lower == last - first + 1:
                continue
            present = set(found[lower:upper])
            self._chosen.update((offset, GAP) for offset in range(first, last + 1) if offset not in present)

    def skip(self, end: int, kind: AcknowledgeType) -> bool:
        """What lies before `end` cannot be delivered; returns whether anything of that was acquired."""
        skipped = False
        for first, last, _ in self.between(self.position, end):
            self._chosen.update(dict.fromkeys(range(first, last + 1), kind))
            skipped = True
        self.position = max(self.position, end)
        return skipped

    def choose(self, offset: int, kind: AcknowledgeType) -> bool:
        """The user says what became of a record; False if it is not the user's to say."""
        if offset in self.pending:
            self.pending.remove(offset)
        elif offset in self.renewed:
            self.renewed.remove(offset)
        elif self._chosen.get(offset, GAP) == GAP:  # what was said before and is not sent yet may be corrected
            return False
        self._chosen[offset] = kind
        return True

    def accept_pending(self, but: Collection[int] = ()) -> None:
        """All that the user has was processed, but those that a poll has taken and not returned yet."""
        accepted = self.pending.difference(but)
        self._chosen.update(dict.fromkeys(accepted, AcknowledgeType.ACCEPT))
        self.pending -= accepted

    def take_chosen(self) -> dict[int, int]:
        """What is to be sent, by offset in their order."""
        chosen, self._chosen = self._chosen, {}
        self.renewing.update(offset for offset, kind in chosen.items() if kind == AcknowledgeType.RENEW)
        return dict(sorted(chosen.items()))

    def renewed_ranges(self) -> list[tuple[int, int, int]]:
        """What is to be returned again: first and last offset, and how often these were delivered; ascending."""
        offsets = sorted(self.renewed)
        return [
            (*run, count)
            for first, last, count in (self.between(offsets[0], offsets[-1] + 1) if offsets else ())
            for run in _in_a_row(offsets[bisect_left(offsets, first) : bisect_right(offsets, last)])
        ]

    def redeliver(self, offsets: Iterable[int]) -> list[int]:
        """The user has got these once more; returns those of them that were to be returned."""
        found = [offset for offset in offsets if offset in self.renewed]
        self.renewed.difference_update(found)
        self.pending.update(found)
        return found

    def put_back(self, offsets: Iterable[int]) -> None:
        """The user has not got these after all: they are returned by the next poll, or others get them."""
        back = self.pending.intersection(offsets)
        self.pending -= back
        if self.lost is None:
            self.renewed |= back

    def expire(self, now: float) -> None:
        """What was not returned before the lock is over others get."""
        if now >= self.expires:
            self.position = self.end
        if now >= self.renewed_until:
            self.renewed.clear()

    def lose(self, error: KafkaError) -> None:
        """The broker does not hold them any more: others get them; what the user says of them is told nobody."""
        if self.lost is None:
            self.lost = error
            self.renewing.clear()
            self.renewed.clear()
            self.position = self.end

    def drop(self) -> None:
        """The user has given all of it up: nothing is handed out, and nothing more is to be said of it."""
        self.pending.clear()
        self.renewing.clear()
        self.renewed.clear()
        self._chosen.clear()
        self.position = self.end

    def renewal_over(self, offsets: Iterable[int], expires: float | None) -> None:
        """The broker has answered a renewal.

        Args:
            offsets: What was to be renewed.
            expires: Until when it is; None if it was refused.
        """
        over = self.renewing.intersection(offsets)
        self.renewing -= over
        if expires is not None:
            self.renewed |= over
            self.renewed_until = expires


@dataclass(slots=True, eq=False)
class ShareCommit:
    """A call that waits for the answers to what it sent."""

    waiting: int = 0
    results: dict[TopicPartition, KafkaError | None] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether all were answered."""
        return not self.waiting

    def answered(self, tp: TopicPartition, error: KafkaError | None) -> None:
        """One more was."""
        self.waiting -= 1
        if error is not None or tp not in self.results:
            self.results[tp] = error


@dataclass(slots=True, eq=False)
class Acknowledgement:
    """What is to be told a broker of some records of one partition."""

    acquired: Acquired
    kinds: dict[int, int]
    """By offset, ascending."""
    deadline: float
    """When to try no more."""
    commit: ShareCommit | None = None
    retry_at: float = 0.0
    failures: int = 0

    @property
    def renews(self) -> bool:
        """Whether some are to be renewed."""
        return AcknowledgeType.RENEW in self.kinds.values()

    @property
    def offsets(self) -> set[int]:
        """Those of records."""
        return {offset for offset, kind in self.kinds.items() if kind != GAP}


def _in_a_row(offsets: Sequence[int]) -> Iterable[tuple[int, int]]:
    """First and last one of those that follow each other."""
    for first, last, _ in _runs(dict.fromkeys(offsets, GAP)):
        yield first, last


_RUN = 16
"""So many offsets in a row of which the same is said are told of with one number."""


def batches_of(kinds: dict[int, int]) -> list[tuple[int, int, list[int]]]:
    """What is said of offsets, as requests say it: first and last offset, and one kind for all of them or one for each.

    Args:
        kinds: By offset, ascending.
    """
    batches: list[tuple[int, int, list[int]]] = []
    for first, last, kind in _runs(kinds):
        length = last - first + 1
        if batches and length < _RUN:
            begin, end, told = batches[-1]
            if end + 1 == first and end - begin + 1 == len(told):  # the last one tells of each for itself
                told += [kind] * length
                batches[-1] = (begin, last, told)
                continue
        batches.append((first, last, [kind] * length if length < _RUN else [kind]))
    return [(first, last, told[:1] if len(set(told)) == 1 else told) for first, last, told in batches]


def _runs(kinds: dict[int, int]) -> Iterable[tuple[int, int, int]]:
    """First and last offset of those in a row of which the same is said."""
    run: tuple[int, int, int] | None = None
    for offset, kind in kinds.items():
        if run is not None and offset == run[1] + 1 and kind == run[2]:
            run = (run[0], offset, kind)
            continue
        if run is not None:
            yield run
        run = (offset, offset, kind)
    if run is not None:
        yield run
