"""The types of groups that this gateway knows, and what becomes of a group of another one."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterable, Sequence, Sized
from typing import Any, Final

from kclient.errors import ErrorCode
from kclient.gateway.groups.classic import ClassicGroup
from kclient.gateway.groups.consumers.mixed import MixedGroup
from kclient.gateway.groups.events import Action, GroupSettings, Ticket
from kclient.gateway.groups.group import CLASSIC, AskedTopics, CommitsNothing, GroupKind
from kclient.gateway.groups.sharing.group import SharedGroup
from kclient.gateway.groups.streaming.group import StreamsGroup
from kclient.gateway.rows.consumer_groups import (
    CONSUMER,
    SHARE,
    decode_consumer_group,
    encode_consumer_group_steps,
)
from kclient.gateway.rows.groups import decode_group, encode_group_steps
from kclient.gateway.rows.streams_groups import STREAMS, decode_streams_group, encode_streams_group_steps


def _new_member_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4()}"


def _make_classic(group_id: str, settings: GroupSettings) -> ClassicGroup:
    return ClassicGroup(group_id, settings, _new_member_id)


KINDS: Final[dict[str, GroupKind]] = {
    CLASSIC: GroupKind(CLASSIC, _make_classic, encode_group_steps, decode_group),
    CONSUMER: GroupKind(CONSUMER, MixedGroup, encode_consumer_group_steps, decode_consumer_group),
    SHARE: GroupKind(SHARE, SharedGroup, encode_consumer_group_steps, decode_consumer_group),
    STREAMS: GroupKind(STREAMS, StreamsGroup, encode_streams_group_steps, decode_streams_group),
}
"""By name. A type that is added has its state machine beside `classic.py`, its row in `rows/groups.py`, and whoever
takes its requests beside `membership.py`."""


class ForeignGroup(CommitsNothing):
    """A group of a type that this version does not know: a newer one wrote its row.

    Its name is taken, its row and its offsets are left alone, and nobody can join it, commit to it or delete it here.

    Args:
        group_id: Its name.
        settings: The broker settings for groups.
        type_name: What its row calls its type.
    """

    def __init__(self, group_id: str, settings: GroupSettings, type_name: str) -> None:
        self.group_id: str = group_id
        self.settings: GroupSettings = settings
        self.type: str = type_name

    @property
    def protocol_type(self) -> str | None:
        """Nobody knows."""
        return None

    @property
    def shown_state(self) -> str:
        """As Kafka's clients call a state that they do not know."""
        return "Unknown"

    @property
    def idle(self) -> bool:
        """Nobody knows; so it stays."""
        return False

    @property
    def untouched(self) -> bool:
        """It has a row."""
        return False

    @property
    def members(self) -> Sized:
        """Nobody knows them."""
        return ()

    @property
    def size(self) -> int:
        """Nothing of its row is kept."""
        return 0

    def next_deadline(self) -> float | None:
        """There is none."""
        return None

    def advance(self, now: float) -> Sequence[Action]:
        """Nothing to do."""
        return ()

    def stored(self, ticket: Ticket, error: ErrorCode, now: float) -> Sequence[Action]:
        """Nothing is ever stored."""
        return ()

    def snapshot(self) -> Any:
        """Nothing is known."""
        return None

    def restore(self, snapshot: Any, now: float) -> Sequence[Action]:
        """Nothing to do."""
        return ()

    def unload(self) -> Sequence[Action]:
        """Nobody waits."""
        return ()

    def rebalance(self, reason: str, now: float) -> Sequence[Action]:
        """It is not known who is in it."""
        return ()

    @property
    def other_rows(self) -> Sequence[str]:
        """It is not deleted here."""
        return ()

    def remove_rows(self, keys: Sequence[str]) -> bool:
        """Its members have none of their own."""
        return False

    def delete(self) -> ErrorCode:
        """It may have members."""
        return ErrorCode.NON_EMPTY_GROUP

    def offsets_in_use(self, asked: AskedTopics) -> Generator[None, None, tuple[ErrorCode, Iterable[str] | None]]:
        """It may have members, that read any topic."""
        yield from ()
        return ErrorCode.NON_EMPTY_GROUP, None
