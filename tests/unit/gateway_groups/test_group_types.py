"""Groups of several types in one coordinator: a small second type, one that nobody knows, and claims on groups."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from typing import Any

import pytest

from kclient.errors import ErrorCode
from kclient.gateway.clock import Clock
from kclient.gateway.groups.events import Action, EmptyStored, GroupSettings, StoreSnapshot, Ticket
from kclient.gateway.groups.group import AskedTopics, GroupKind
from kclient.gateway.groups.kinds import KINDS
from kclient.gateway.groups.offsets import Expiry, OffsetCommit
from kclient.gateway.groups.writer import Write
from kclient.gateway.rows.groups import CommittedOffset
from kclient.gateway.rows.keys import group_key
from kclient.htp.rows import dump, parse_object, seal, unsealed
from kclient.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kclient.types import TopicPartition
from tests.unit.gateway_groups.harness import Harness, committed, coordinator, fresh_name, reset, stored, topics_of

pytestmark = pytest.mark.anyio


class Club:
    """A group of a type of its own: whoever knows its name is a member for ten seconds; no offset is a member's."""

    type = "club"
    protocol_type: str | None = "social"
    untouched = False

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.settings = settings
        self.members: dict[str, float] = {}
        self.tickets: list[Ticket] = []

    @property
    def shown_state(self) -> str:
        return "Open" if self.members else "Empty"

    @property
    def idle(self) -> bool:
        return not self.members

    @property
    def size(self) -> int:
        return 100 * len(self.members)

    def enter(self, name: str, now: float) -> Sequence[Action]:
        self.members[name] = now + 10
        return [StoreSnapshot(self.snapshot(), EmptyStored(0))]

    def next_deadline(self) -> float | None:
        return min(self.members.values(), default=None)

    def advance(self, now: float) -> Sequence[Action]:
        self.members = {name: until for name, until in self.members.items() if until > now}
        return [StoreSnapshot(self.snapshot(), EmptyStored(0))]

    def stored(self, ticket: Ticket, error: ErrorCode, now: float) -> Sequence[Action]:
        assert not error
        self.tickets.append(ticket)
        return ()

    def snapshot(self) -> Any:
        return sorted(self.members)

    def restore(self, snapshot: Any, now: float) -> Sequence[Action]:
        self.members = dict.fromkeys(snapshot, now + 10)
        return ()

    def unload(self) -> Sequence[Action]:
        self.members = {}
        return ()

    def delete(self) -> ErrorCode:
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    def rebalance(self, reason: str, now: float) -> Sequence[Action]:
        return ()

    @property
    def other_rows(self) -> Sequence[str]:
        return ()

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now: float,
        *,
        commit: OffsetCommit | None = None,
        transactional: bool = False,
        version: int | None = None,
    ) -> ErrorCode:
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        return ErrorCode.NONE

    def offsets_in_use(self, asked: AskedTopics) -> Generator[None, None, tuple[ErrorCode, Iterable[str] | None]]:
        yield
        return ErrorCode.NONE, ("b",) if self.members else ()

    def expiry(
        self, since_ms: int, retention_ms: int, asked: AskedTopics, *, unread: bool
    ) -> Generator[None, None, Expiry | None]:
        yield
        return None if self.members else Expiry(retention_ms, since_ms, frozenset())


def _encode(snapshot: Any, since_ms: int) -> Generator[None, None, bytes]:
    yield
    return seal(dump({"format": 1, "type": "club", "members": snapshot, "since": since_ms}))


def _decode(row: bytes, group_id: str) -> tuple[Any, int]:
    fields = parse_object(unsealed(row))
    return fields["members"], fields["since"]


CLUBS: Mapping[str, GroupKind] = {**KINDS, "club": GroupKind("club", Club, _encode, _decode)}


@pytest.fixture
async def store() -> AsyncIterator[str]:
    name = fresh_name()
    yield name
    reset(name)


def club(box: Harness, name: str, *members: str) -> Club:
    """A club with these members."""
    managed = box.groups.table.groups.get(name) or box.groups.table.create(name, kind="club")
    assert isinstance(managed.group, Club)
    for member in members:
        box.groups.table.perform(managed, managed.group.enter(member, box.clock.now()))
    return managed.group


async def listed(box: Harness, *types: str, states: Sequence[str] = ()) -> dict[str, tuple[str, str, str]]:
    answer = await box.ask(ListGroupsRequest(types_filter=list(types), states_filter=list(states)), 5)
    return {each.group_id: (each.group_type, each.group_state, each.protocol_type) for each in answer.groups}


class Later:
    """A clock that is put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0
        real = Clock()
        self.clock = Clock(lambda: real.now() + self.ahead, lambda: real.wall_ms() + int(self.ahead * 1000))


async def test_groups_of_two_types_live_beside_each_other(store: str) -> None:
    async with coordinator(store, kinds=CLUBS) as box:
        await box.member("classic")
        club(box, "chess", "ann", "bob")
        club(box, "empty")
        assert await listed(box) == {
            "classic": ("classic", "Stable", "consumer"),
            "chess": ("club", "Open", "social"),
            "empty": ("club", "Empty", "social"),
        }
        assert (await listed(box, "CLUB")).keys() == {"chess", "empty"}
        assert (await listed(box, "club", states=["open"])).keys() == {"chess"}
        assert (await listed(box, "classic", "share")).keys() == {"classic"}
        assert await listed(box, "share") == {}


async def test_they_are_stored_and_restored(store: str) -> None:
    async with coordinator(store, kinds=CLUBS) as box:
        await box.member("classic")
        club(box, "chess", "ann", "bob")
        await box.groups._writer.drain()
        rows = await box.manager.get([group_key("chess"), group_key("classic")])
        types = {key: json.loads(unsealed(row.value))["type"] for key, row in rows.items()}
        assert types == {"group/chess": "club", "group/classic": "classic"}
    async with coordinator(store, kinds=CLUBS) as box:
        assert (await listed(box))["chess"] == ("club", "Open", "social")
        assert list(club(box, "chess").members) == ["ann", "bob"]
        assert (await listed(box))["classic"] == ("classic", "Stable", "consumer")


def held_by_groups(box: Harness) -> int:
    """Bytes of memory, with members or without, beside what is on its way to the store."""
    return sum(each.held for each in box.memory.ledger.accounts() if each.name != "group writes")


async def test_their_deadlines_are_kept(store: str) -> None:
    later = Later()
    async with coordinator(store, later.clock, kinds=CLUBS) as box:
        group = club(box, "chess", "ann")
        held = held_by_groups(box)
        later.ahead = 11
        box.groups.table.advance("chess", box.clock.now())
        assert (group.members, group.shown_state) == ({}, "Empty")
        assert held_by_groups(box) == held - 100
        await box.groups._writer.drain()
        assert len(group.tickets) == 2


async def test_requests_of_another_type_are_answered_as_from_kafka(store: str) -> None:
    async with coordinator(store, kinds=CLUBS) as box:
        group = club(box, "chess", "ann")
        assert (await box.join("chess")).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        heartbeat = HeartbeatRequest(group_id="chess", generation_id=1, member_id="ann")
        assert (await box.ask(heartbeat)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        for version, code in ((5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)):
            (row,) = (await box.ask(DescribeGroupsRequest(groups=["chess"]), version)).groups
            assert (row.group_state, row.error_code, row.members) == ("Dead", code, [])
        assert row.error_message == "Group chess is not a classic group."
        refused = box.groups.committed.check_commit("chess", "", None, -1, missing=ErrorCode.ILLEGAL_GENERATION)
        assert refused is ErrorCode.GROUP_ID_NOT_FOUND
        assert list(group.members) == ["ann"]


async def test_their_offsets_expire_and_they_go(store: str) -> None:
    later = Later()
    async with coordinator(store, later.clock, kinds=CLUBS) as box:
        club(box, "chess", "ann")
        club(box, "empty")
        await committed(box, "chess", a=1)
        await committed(box, "empty", a=1)
        await box.groups._writer.drain()
        later.ahead = 8 * 24 * 3600
        box.groups.expiry.expire()
        await box.groups._writer.drain()
        assert (await listed(box, "club")).keys() == {"chess"}
        assert topics_of(box, "chess") == ["a"]
        assert await stored(box) == ["chess/a/0"]


async def test_they_are_deleted(store: str) -> None:
    async with coordinator(store, kinds=CLUBS) as box:
        group = club(box, "chess", "ann")
        await committed(box, "chess", a=1, b=2)
        wanted = [OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
                  for name in ("a", "b")]  # fmt: skip
        answer = await box.ask(OffsetDeleteRequest(group_id="chess", topics=wanted), 0)
        codes = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
        assert codes == {"a": 0, "b": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
        delete = DeleteGroupsRequest(groups_names=["chess"])
        assert (await box.ask(delete)).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        group.members.clear()
        assert (await box.ask(delete)).results[0].error_code == 0
        assert await box.manager.get([group_key("chess")]) == {}
        assert await stored(box) == []


async def test_a_group_of_an_unknown_type_is_left_alone(store: str, caplog: pytest.LogCaptureFixture) -> None:
    async with coordinator(store, kinds=CLUBS) as box:
        club(box, "chess", "ann")
        await committed(box, "chess", a=1)
        await box.groups._writer.drain()
        before = await box.manager.get([group_key("chess")])
    later = Later()
    later.ahead = 8 * 24 * 3600
    async with coordinator(store, later.clock) as box:
        assert "group chess is of type club, which this version does not know" in caplog.text
        assert await listed(box) == {"chess": ("club", "Unknown", "")}
        assert (await listed(box, "club")).keys() == {"chess"}
        assert (await box.join("chess")).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await box.join("chess", "ann")).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        missing = ErrorCode.GROUP_ID_NOT_FOUND
        assert box.groups.committed.check_commit("chess", "", None, -1, missing=missing) is missing
        delete = DeleteGroupsRequest(groups_names=["chess"])
        assert (await box.ask(delete)).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        wanted = [OffsetDeleteRequestTopic(name="a", partitions=[OffsetDeleteRequestPartition(partition_index=0)])]
        answer = await box.ask(OffsetDeleteRequest(group_id="chess", topics=wanted), 0)
        assert answer.error_code == ErrorCode.NON_EMPTY_GROUP
        box.groups.expiry.expire()
        await box.groups._writer.drain()
        assert topics_of(box, "chess") == ["a"]
        assert await box.manager.get([group_key("chess")]) == before
    async with coordinator(store, kinds=CLUBS) as box:
        assert list(club(box, "chess").members) == ["ann"]
        assert topics_of(box, "chess") == ["a"]


class SmallClaims:
    """One row for each group that is claimed."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}

    def of(self, group_id: str) -> Mapping[str, int]:
        version = self.versions.get(group_id)
        return {} if version is None else {f"claim/{group_id}": version}

    async def renew(self) -> None:
        """Whoever has lost one has lost it."""


async def test_nothing_is_written_for_a_group_that_another_gateway_has_taken_over(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    claims = SmallClaims()
    async with coordinator(store, claims=claims) as box:
        for name in ("mine", "lost"):
            claims.versions[name] = await box.manager.commit({f"claim/{name}": b"here"})
            await committed(box, name, a=1)
        await box.manager.commit({"claim/lost": b"elsewhere"})
        writes: list[Write] = []
        for name in ("mine", "lost", "unclaimed", "lost"):  # in one commit
            writes.append(box.store_offsets(name, _offsets(box, a=2)))
        assert [await write.wait() for write in writes] == [
            ErrorCode.NONE, ErrorCode.NOT_COORDINATOR, ErrorCode.NONE, ErrorCode.NOT_COORDINATOR,
        ]  # fmt: skip
        assert "another gateway coordinates lost" in caplog.text
        for name, offset in (("mine", 2), ("lost", 1), ("unclaimed", 2)):
            offsets = box.groups.committed.of(name)
            assert offsets is not None
            found = offsets.get("a", 0)
            assert found is not None
            assert found.offset == offset, name


async def test_nothing_of_a_large_write_either(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kclient.gateway.groups.writer.MAX_ROWS", 2)
    monkeypatch.setattr("kclient.gateway.groups.committed._FEW", 2)
    claims = SmallClaims()
    async with coordinator(store, claims=claims) as box:
        claims.versions["lost"] = await box.manager.commit({"claim/lost": b"here"})
        await box.manager.commit({"claim/lost": b"elsewhere"})
        write = box.store_offsets("lost", _offsets(box, a=1, b=1, c=1))
        assert await write.wait() is ErrorCode.NOT_COORDINATOR
        assert await stored(box) == []
        assert topics_of(box, "lost") == []


def _offsets(box: Harness, **offsets: int) -> Any:
    now = box.clock.wall_ms()
    return {TopicPartition(topic, 0): CommittedOffset(at, commit_ms=now) for topic, at in offsets.items()}
