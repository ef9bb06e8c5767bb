"""What the user has of a share group's records: what was handed out, and what was said of it; without I/O or clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.consumer.share.acquired import Acquired
    from kclient.consumer.share.model import AcknowledgeType, SharePartition
    from kclient.errors import KafkaError
    from kclient.types import TopicPartition


class Hand:
    """The records of one consumer that are in its user's hand.

    Args:
        explicit: Whether the user says of each what became of it (`share.acknowledgement.mode`).
    """

    def __init__(self, *, explicit: bool) -> None:
        self.explicit: bool = explicit
        self._held: dict[TopicPartition, list[Acquired]] = {}

    def all(self) -> list[Acquired]:
        """Everything of which something was handed out and not all is settled."""
        return [acquired for held in self._held.values() for acquired in held]

    # ------------------------------------------------------------------ what comes and goes

    def take(self, acquired: Acquired) -> None:
        """Something of it is handed out now."""
        held = self._held.setdefault(acquired.partition.tp, [])
        if acquired not in held:
            held.append(acquired)

    def forget_settled(self) -> None:
        """What is sent and answered, or needs no answer, is of no interest any more."""
        left = {tp: [one for one in held if not one.settled] for tp, held in self._held.items()}
        self._held = {tp: held for tp, held in left.items() if held}

    def lose(self, node_id: int, partition: SharePartition | None, error: KafkaError) -> None:
        """A node does not hold its records any more, of one partition or of all."""
        for acquired in self.all():
            if acquired.node_id == node_id and partition in {None, acquired.partition}:
                acquired.lose(error)

    def drop(self) -> None:
        """The user has none of them any more; what was sent is answered all the same."""
        for acquired in self.all():
            acquired.drop()
        self.forget_settled()

    # ------------------------------------------------------------------ what the user says

    def acknowledge(self, offsets: Iterable[tuple[TopicPartition, int]], kind: AcknowledgeType) -> None:
        """Of these the user says what became of them.

        Raises:
            IllegalStateError: One is not in the user's hand: it was never handed out, was acknowledged and sent, or was
                given up by `unsubscribe`. Or what the next poll accepts by itself needs no acknowledgement. Those
                before it are acknowledged.
        """
        if not self.explicit:
            raise IllegalStateError(
                "The next poll or commit acknowledges what was returned (share.acknowledgement.mode=implicit): set it "
                "to explicit to acknowledge records one by one"
            )
        for tp, offset in offsets:
            if not any(acquired.choose(offset, kind) for acquired in self._held.get(tp, ())):
                raise IllegalStateError(
                    f"The record at offset {offset} of {tp} cannot be acknowledged: no poll returned it, what became "
                    "of it was told the broker before, or the consumer has unsubscribed since"
                )

    def settle(self, *, polls: bool, taken: Iterable[tuple[Acquired, list[int]]] = ()) -> None:
        """The user polls or commits: in implicit mode all that was returned was processed.

        Args:
            polls: Whether the next records are asked for.
            taken: Offsets that a poll which is under way has taken, and not returned yet.

        Raises:
            IllegalStateError: In explicit mode, the next ones are asked for before all were acknowledged.
        """
        awaited: dict[Acquired, set[int]] = {}
        for acquired, offsets in taken:
            awaited.setdefault(acquired, set()).update(offsets)
        for acquired in self.all():
            if not acquired.pending:
                continue
            if not self.explicit:
                acquired.accept_pending(awaited.get(acquired, ()))
            elif polls:
                raise IllegalStateError(
                    f"{len(acquired.pending)} records of {acquired.partition.tp} were not acknowledged, the first of "
                    f"them at offset {min(acquired.pending)}: acknowledge every record before the next poll "
                    "(share.acknowledgement.mode=explicit)"
                )

    @property
    def unsettled(self) -> bool:
        """Whether the user has records of which nothing was said yet."""
        return any(acquired.pending for acquired in self.all())

    # ------------------------------------------------------------------ renewals

    @property
    def renews(self) -> bool:
        """Whether locks are being renewed, or records are to be returned again for which that is done."""
        return any(acquired.renewing or acquired.renewed for acquired in self.all())

    def renewed(self) -> list[Acquired]:
        """Of what records are to be returned again."""
        return [acquired for acquired in self.all() if acquired.renewed]
