"""What a transaction leaves to the groups whose offsets it was to commit."""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.gateway.rows.groups import decode_offset, encode_offset
from kclient.gateway.rows.keys import offset_key, pending_key, topic_key
from kclient.gateway.rows.pending import PendingOffsets, decode_pending
from kclient.gateway.rows.topics import TopicRow
from kclient.net.fair_queue import Pace

if TYPE_CHECKING:
    from kclient.gateway.rows.groups import CommittedOffset
    from kclient.gateway.transaction import Transaction
    from kclient.htp.port import Manager, Versioned
    from kclient.net.fair_queue import Flow

_NONE: Final = b""
"""No topic's id."""

logger: logging.Logger = logging.getLogger("kclient.gateway.transactions")


class OutcomeRows(NamedTuple):
    """What is to be written in one commit, and what it expects."""

    writes: dict[str, bytes | None]
    expected: dict[str, int]


class GroupOutcomes:
    """Applies what was pending, or drops it.

    Args:
        manager: Keeps the rows.
        flow: In whose turns rows are made.
    """

    def __init__(self, manager: Manager, flow: Flow) -> None:
        self._manager = manager
        self._flow = flow

    async def rows(self, transaction: Transaction) -> OutcomeRows:
        """What the commit that completes a prepared transaction writes beside its row.

        It expects what has been looked at: a group that was deleted meanwhile, a topic that was, and an offset that was
        committed otherwise. Of several offsets of a partition the one that was committed last counts, as in Kafka.

        Args:
            transaction: Prepared: nothing is added any more.

        Raises:
            HtpError: The store failed.
        """
        found = OutcomeRows({}, {})
        if not transaction.groups:
            return found
        transactional_id = transaction.transactional_id
        keys = {pending_key(group_id, transactional_id): group_id for group_id in transaction.groups}
        pending: list[PendingOffsets] = []
        for key, row in (await self._manager.get(keys)).items():
            found.writes[key], found.expected[key] = None, row.version
            try:
                pending.append(decode_pending(row.value, keys[key], transactional_id))
            except ValueError as error:
                logger.error(
                    "the offsets that transactional.id %s was to commit for group %s cannot be read and are not "
                    "committed: reset those of the group if its consumers begin too early (%s)",
                    transactional_id[:300], keys[key][:300], error,
                )  # fmt: skip
        if transaction.committed:
            await self._apply(pending, found)
        return found

    async def _apply(self, pending: list[PendingOffsets], found: OutcomeRows) -> None:
        names = dict.fromkeys(each.topic for each in chain.from_iterable(each.offsets for each in pending))
        topics = await self._manager.get([topic_key(name) for name in names]) if names else {}
        ids = {key: _topic_id(row) for key, row in topics.items()}
        pace = Pace(self._flow)
        for each in pending:
            keys = {offset_key(each.group_id, partition): partition for partition in each.offsets}
            there = await self._manager.get(keys) if keys else {}
            for key, partition in keys.items():
                if pace.over:
                    await pace.pause()
                committed, topic_id = each.offsets[partition]
                topic = topic_key(partition.topic)
                if ids.get(topic, _NONE) not in {None, topic_id}:
                    continue  # it was deleted
                found.expected[topic] = topics[topic].version
                present = there.get(key)
                if not _newer(present, committed, topic_id):
                    found.expected[key] = 0 if present is None else present.version
                    found.writes[key] = encode_offset(committed, topic_id)


def _topic_id(row: Versioned) -> bytes | None:
    """Of which topic a row is; None if it is damaged: its offsets stay as they are until it is restored."""
    try:
        return TopicRow.decode(row.value).topic_id
    except ValueError:
        return None


def _newer(present: Versioned | None, committed: CommittedOffset, topic_id: bytes) -> bool:
    """Whether an offset that is there was committed after this one."""
    if present is None:
        return False
    try:
        found, found_id = decode_offset(present.value)
    except ValueError:
        return False
    return found_id == topic_id and found.commit_ms > committed.commit_ms
