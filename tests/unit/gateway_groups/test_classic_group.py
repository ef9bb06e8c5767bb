"""The group's state machine, case by case; the names follow the cases of Kafka's GroupMetadataManagerTest."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from kclient.errors import ErrorCode
from kclient.gateway.groups.events import Leave
from kclient.gateway.groups.states import GroupState
from tests.unit.gateway_groups.groupbox import GroupBox

NONE = ErrorCode.NONE
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID


# ---- joining ---------------------------------------------------------------------------------------------


def test_first_generation_waits_for_the_initial_delay() -> None:
    box = GroupBox()
    first = box.join()
    assert box.group.state is GroupState.PREPARING_REBALANCE
    box.sleep(2.9)
    assert box.parked(first)
    box.sleep(0.2)
    result = box.joined(first)
    assert result.error is NONE
    assert (result.generation, result.protocol_type, result.protocol_name) == (1, "consumer", "range")
    assert result.leader == result.member_id == "client-1"
    assert result.members == (("client-1", None, b"topics"),)
    assert box.group.state is GroupState.COMPLETING_REBALANCE


def test_each_newcomer_extends_the_initial_delay_up_to_the_rebalance_timeout() -> None:
    box = GroupBox()
    tokens = [box.join(rebalance_timeout_ms=10_000)]
    for _ in range(3):
        box.sleep(2.5)
        tokens.append(box.join(rebalance_timeout_ms=10_000))
        assert all(box.parked(token) for token in tokens)
    box.sleep(2.4)  # 9.9 s since the first
    assert all(box.parked(token) for token in tokens)
    box.sleep(0.2)
    assert {box.joined(token).generation for token in tokens} == {1}
    assert sum(bool(box.joined(token).members) for token in tokens) == 1


def test_without_a_newcomer_the_delay_is_not_extended() -> None:
    box = GroupBox()
    token = box.join()
    box.join(member_id="", rebalance_timeout_ms=30_000)
    box.sleep(3.1)
    assert box.parked(token)  # the second one came within the first delay
    box.sleep(3.0)
    assert box.joined(token).generation == 1


def test_initial_delay_of_zero() -> None:
    box = GroupBox(group_initial_rebalance_delay_ms=0)
    token = box.join()
    box.sleep(0)
    assert box.joined(token).generation == 1


def test_member_id_required() -> None:
    box = GroupBox()
    result = box.joined(box.join(require_member_id=True))
    assert result.error is ErrorCode.MEMBER_ID_REQUIRED
    assert result.member_id == "client-1"
    assert box.group.state is GroupState.EMPTY
    token = box.join(result.member_id, require_member_id=True)
    box.sleep(3.1)
    assert box.joined(token).member_id == "client-1"
    assert not box.group.members.pending_joins


def test_an_id_that_was_never_handed_out_is_unknown() -> None:
    box = GroupBox()
    box.stable()
    assert box.joined(box.join("client-77")).error is UNKNOWN


def test_pending_id_expires_with_its_session() -> None:
    box = GroupBox()
    member_id = box.joined(box.join(require_member_id=True, session_timeout_ms=6_000)).member_id
    box.sleep(6.1)
    assert not box.group.members.pending_joins
    assert box.joined(box.join(member_id)).error is UNKNOWN


def test_a_rebalance_waits_for_pending_ids() -> None:
    box = GroupBox()
    (leader,) = box.stable()
    pending = box.joined(box.join(require_member_id=True)).member_id
    token = box.join(leader)
    assert box.parked(token)
    newcomer = box.join(pending, require_member_id=True)
    assert box.joined(token).generation == box.joined(newcomer).generation == 2


def test_static_members_need_no_member_id() -> None:
    box = GroupBox()
    token = box.join(instance_id="one")
    box.sleep(3.1)
    assert box.joined(token).error is NONE
    assert box.joined(token).member_id.startswith("one-")
    assert box.joined(token).members[0][1] == "one"


def test_inconsistent_protocols() -> None:
    box = GroupBox()
    box.stable()
    for fields in (
        {"protocol_type": "connect"},
        {"protocols": (("roundrobin", b""),)},
        {"protocols": ()},
        {"protocol_type": ""},
    ):
        assert box.joined(box.join(**fields)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # type: ignore[arg-type]


def test_empty_group_takes_another_protocol_type() -> None:
    box = GroupBox()
    (member,) = box.stable()
    box.leave(member)
    token = box.join(protocol_type="connect", protocols=(("sessioned", b"\x00\xff"),))
    box.sleep(3.1)
    assert box.joined(token).protocol_type == "connect"
    assert box.joined(token).members[0][2] == b"\x00\xff"


def test_protocol_is_chosen_by_votes_among_the_common_ones() -> None:
    box = GroupBox()
    both = (("range", b"r"), ("sticky", b"s"))
    tokens = [
        box.join(protocols=both),
        box.join(protocols=(("sticky", b"s"), ("range", b"r"), ("other", b"o"))),
        box.join(protocols=(("other", b"o"), ("sticky", b"s"), ("range", b"r"))),
    ]
    box.settle()
    assert {box.joined(token).protocol_name for token in tokens} == {"sticky"}
    leader = box.joined(tokens[0])
    assert [metadata for _, _, metadata in leader.members] == [b"s", b"s", b"s"]


def test_rejoining_follower_without_change_gets_the_present_generation() -> None:
    box = GroupBox()
    leader, follower = box.stable(2)
    result = box.joined(box.join(follower))
    assert (result.error, result.generation, result.members) == (NONE, 1, ())
    assert result.leader == leader
    assert box.group.state is GroupState.STABLE


def test_rejoining_leader_forces_a_rebalance() -> None:
    box = GroupBox()
    leader, follower = box.stable(2)
    token = box.join(leader)
    assert box.parked(token)
    assert box.heartbeat(follower) is REBALANCE
    follower_token = box.join(follower)
    assert box.joined(token).generation == 2
    assert len(box.joined(token).members) == 2
    assert box.joined(follower_token).members == ()


def test_follower_with_new_metadata_forces_a_rebalance() -> None:
    box = GroupBox()
    leader, follower = box.stable(2)
    token = box.join(follower, protocols=(("range", b"other topics"),))
    assert box.parked(token)
    leader_token = box.join(leader)
    assert {m: d for m, _, d in box.joined(leader_token).members}[follower] == b"other topics"


def test_rejoin_while_completing_repeats_the_answer() -> None:
    box = GroupBox()
    tokens = [box.join(), box.join()]
    box.settle()
    leader = next(box.joined(token) for token in tokens if box.joined(token).members)
    follower = next(box.joined(token) for token in tokens if not box.joined(token).members)
    assert box.joined(box.join(leader.member_id)) == leader
    assert box.joined(box.join(follower.member_id)) == follower
    assert box.group.state is GroupState.COMPLETING_REBALANCE


def test_second_join_of_the_same_member_supersedes_the_first() -> None:
    box = GroupBox()
    leader, follower = box.stable(2)
    first = box.join(leader)
    second = box.join(leader)
    assert box.joined(first).error is REBALANCE
    box.join(follower)
    assert box.joined(second).generation == 2


def test_members_that_do_not_rejoin_in_time_are_removed() -> None:
    box = GroupBox()
    leader, follower = box.stable(2, session_timeout_ms=60_000)
    token = box.join(leader, session_timeout_ms=60_000)
    box.sleep(29)
    assert box.parked(token)
    box.sleep(1.1)
    assert [member for member, _, _ in box.joined(token).members] == [leader]
    assert box.heartbeat(follower) is UNKNOWN


def test_a_new_leader_is_elected_when_the_old_one_does_not_rejoin() -> None:
    box = GroupBox()
    leader, follower = box.stable(2, session_timeout_ms=60_000)
    token = box.join(follower, protocols=(("range", b"new"),))
    box.sleep(31)
    assert box.joined(token).leader == follower
    assert leader not in box.group.members


def test_new_member_whose_connection_is_gone_times_out_after_five_minutes() -> None:
    box = GroupBox()
    leader, follower = box.stable(2, session_timeout_ms=1_800_000, rebalance_timeout_ms=1_800_000)
    ghost = box.join(rebalance_timeout_ms=1_800_000)
    box.join(leader, rebalance_timeout_ms=1_800_000)
    box.sleep(299)
    assert box.parked(ghost)
    box.sleep(2)
    assert box.joined(ghost).error is UNKNOWN
    assert follower in box.group.members


def test_member_whose_client_goes_while_it_waits_keeps_its_place_and_is_not_answered() -> None:
    box = GroupBox()
    leader, follower = box.stable(2)
    parked = box.join(leader)
    box.run(box.group.forsake(parked, box.now))
    assert leader in box.group.members
    again = box.join(follower)
    box.settle()
    assert box.joined(again).generation == 2
    assert box.parked(parked)


# ---- sizes -----------------------------------------------------------------------------------------------


def test_group_max_size() -> None:
    box = GroupBox(group_max_size=2)
    box.stable(2)
    assert box.joined(box.join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert box.group.state is GroupState.STABLE


def test_group_max_size_counts_those_who_wait() -> None:
    box = GroupBox(group_max_size=2)
    tokens = [box.join() for _ in range(3)]
    assert box.joined(tokens[2]).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    box.settle()
    assert {box.joined(token).error for token in tokens[:2]} == {NONE}


def test_restored_group_that_is_just_not_too_large_goes_on() -> None:
    box = GroupBox()
    box.stable(3)
    full = GroupBox(group_max_size=3, now=500.0)
    full.run(full.group.restore(box.stored[-1], full.now))
    assert full.group.state is GroupState.STABLE


def test_restored_group_that_is_too_large_sheds_the_last_to_rejoin() -> None:
    box = GroupBox()
    ids = box.stable(3)
    small = GroupBox(group_max_size=2, now=500.0)
    small.run(small.group.restore(box.stored[-1], small.now))
    assert small.group.state is GroupState.PREPARING_REBALANCE
    tokens = [small.join(member_id) for member_id in ids]
    assert small.joined(tokens[2]).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert {small.joined(token).generation for token in tokens[:2]} == {2}


# ---- syncing ---------------------------------------------------------------------------------------------


def test_followers_park_until_the_leader_brings_the_assignment_and_it_is_stored() -> None:
    box = GroupBox()
    tokens = [box.join(), box.join()]
    box.settle()
    leader = box.joined(tokens[0]).leader
    follower = next(box.joined(t).member_id for t in tokens if box.joined(t).member_id != leader)
    box.hold = True
    waiting = box.sync(follower)
    leading = box.sync(leader, assignments={leader: b"a", follower: b"b", "stranger": b"c"})
    assert box.parked(waiting)
    assert box.parked(leading)
    assert box.group.state is GroupState.COMPLETING_REBALANCE
    box.finish_stores()
    assert box.synced(leading).assignment == b"a"
    assert box.synced(waiting).assignment == b"b"
    assert (box.synced(waiting).protocol_type, box.synced(waiting).protocol_name) == ("consumer", "range")
    assert box.group.state is GroupState.STABLE
    snapshot = box.stored[-1]
    assert {member.member_id: member.assignment for member in snapshot.members} == {leader: b"a", follower: b"b"}


def test_members_without_an_assignment_get_an_empty_one() -> None:
    box = GroupBox()
    tokens = [box.join(), box.join()]
    box.settle()
    leader = box.joined(tokens[0]).leader
    follower = next(box.joined(t).member_id for t in tokens if box.joined(t).member_id != leader)
    box.sync(leader, assignments={leader: b"all"})
    assert box.synced(box.sync(follower)).assignment == b""


def test_sync_errors() -> None:
    box = GroupBox()
    leader, follower = box.stable(2)
    assert box.synced(box.sync("stranger")).error is UNKNOWN
    assert box.synced(box.sync(follower, 0)).error is ErrorCode.ILLEGAL_GENERATION
    wrong = box.sync(follower, protocol_type="connect")
    assert box.synced(wrong).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wrong = box.sync(follower, protocol_name="sticky")
    assert box.synced(wrong).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert box.synced(box.sync(follower, protocol_type="consumer", protocol_name="range")).error is NONE
    box.join(leader)
    assert box.synced(box.sync(follower)).error is REBALANCE


def test_a_rebalance_answers_the_parked_syncs() -> None:
    box = GroupBox()
    tokens = [box.join(), box.join()]
    box.settle()
    leader = box.joined(tokens[0]).leader
    follower = next(box.joined(t).member_id for t in tokens if box.joined(t).member_id != leader)
    waiting = box.sync(follower)
    box.join()
    assert box.synced(waiting).error is REBALANCE


def test_a_member_that_leaves_with_a_parked_sync_is_answered() -> None:
    box = GroupBox()
    tokens = [box.join(), box.join()]
    box.settle()
    leader = box.joined(tokens[0]).leader
    follower = next(box.joined(t).member_id for t in tokens if box.joined(t).member_id != leader)
    waiting = box.sync(follower)
    assert box.leave(follower) == [NONE]
    assert box.synced(waiting).error is UNKNOWN


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout() -> None:
    box = GroupBox()
    tokens = [box.join(session_timeout_ms=120_000), box.join(session_timeout_ms=120_000)]
    box.sleep(6.1)
    leader = box.joined(tokens[0]).leader
    follower = next(box.joined(t).member_id for t in tokens if box.joined(t).member_id != leader)
    box.sync(leader)
    assert box.group.state is GroupState.STABLE
    box.sleep(31)
    assert follower not in box.group.members
    assert box.heartbeat(leader) is REBALANCE


def test_failed_store_of_the_assignment_restarts_the_rebalance() -> None:
    box = GroupBox()
    token = box.join()
    box.sleep(3.1)
    member_id = box.joined(token).member_id
    box.hold = True
    sync = box.sync(member_id, assignments={member_id: b"a"})
    box.finish_stores(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert box.synced(sync).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert box.group.state is GroupState.PREPARING_REBALANCE
    assert box.joined(box.join(member_id)).generation == 2


def test_store_of_an_older_generation_changes_nothing() -> None:
    box = GroupBox()
    token = box.join()
    box.sleep(3.1)
    member_id = box.joined(token).member_id
    box.hold = True
    old = box.sync(member_id, assignments={member_id: b"old"})
    rejoined = box.join(member_id, protocols=(("range", b"new"),))
    assert box.synced(old).error is REBALANCE
    assert box.joined(rejoined).generation == 2
    box.finish_stores()
    assert box.group.state is GroupState.COMPLETING_REBALANCE
    new = box.sync(member_id, assignments={member_id: b"new"})
    box.finish_stores()
    assert box.synced(new).assignment == b"new"


def test_leader_that_syncs_twice_is_answered_once() -> None:
    box = GroupBox()
    token = box.join()
    box.sleep(3.1)
    member_id = box.joined(token).member_id
    box.hold = True
    first = box.sync(member_id, assignments={member_id: b"a"})
    second = box.sync(member_id, assignments={member_id: b"a"})
    assert box.synced(first).error is REBALANCE
    box.finish_stores()
    assert box.synced(second).assignment == b"a"


# ---- heartbeats and commits ------------------------------------------------------------------------------


def test_heartbeats_in_each_state() -> None:
    box = GroupBox()
    token = box.join()
    box.sleep(3.1)
    member_id = box.joined(token).member_id
    assert box.heartbeat(member_id) is NONE  # completing: treated as a normal heartbeat (KAFKA-9823)
    box.sync(member_id)
    assert box.heartbeat(member_id) is NONE
    assert box.heartbeat(member_id, 0) is ErrorCode.ILLEGAL_GENERATION
    assert box.heartbeat("stranger") is UNKNOWN
    box.join()
    assert box.heartbeat(member_id) is REBALANCE
    box.leave(member_id)
    assert box.heartbeat(member_id) is UNKNOWN


def test_session_times_out() -> None:
    box = GroupBox()
    leader, follower = box.stable(2)
    for _ in range(4):
        box.sleep(5)
        assert box.heartbeat(leader) in (NONE, REBALANCE)
    assert follower not in box.group.members
    assert box.group.state is GroupState.PREPARING_REBALANCE
    assert [m for m, _, _ in box.joined(box.join(leader)).members] == [leader]


def test_all_sessions_time_out_and_the_group_is_empty() -> None:
    box = GroupBox()
    box.stable(2)
    box.sleep(60)
    assert box.group.state is GroupState.EMPTY
    assert box.group.next_deadline() is None
    assert box.stored[-1].members == ()
    assert box.stored[-1].generation == box.group.generation == 2


def test_a_parked_member_needs_no_heartbeats() -> None:
    box = GroupBox()
    leader, follower = box.stable(2, session_timeout_ms=10_000, rebalance_timeout_ms=60_000)
    token = box.join(leader, rebalance_timeout_ms=60_000)
    for _ in range(5):
        box.sleep(8)
        assert box.heartbeat(follower) is REBALANCE
    assert box.parked(token)
    box.join(follower)
    assert box.joined(token).error is NONE


def test_commits_in_each_state() -> None:
    box = GroupBox()
    assert box.commit("", -1) is NONE
    assert box.commit("stranger", 3) is UNKNOWN
    token = box.join()
    assert box.commit("", -1) is UNKNOWN
    box.sleep(3.1)
    member_id = box.joined(token).member_id
    assert box.commit(member_id) is REBALANCE
    box.sync(member_id)
    assert box.commit(member_id) is NONE
    assert box.commit(member_id, 0) is ErrorCode.ILLEGAL_GENERATION
    assert box.commit("", -1) is UNKNOWN
    box.join()
    assert box.group.state is GroupState.PREPARING_REBALANCE
    assert box.commit(member_id) is NONE  # the heartbeat tells it; what it has worked off may be committed


def test_commit_counts_as_heartbeat() -> None:
    box = GroupBox()
    (member,) = box.stable()
    for _ in range(5):
        box.sleep(8)
        assert box.commit(member) is NONE


# ---- leaving ---------------------------------------------------------------------------------------------


def test_leaving_starts_one_rebalance_for_all_who_leave() -> None:
    box = GroupBox()
    ids = box.stable(3)
    assert box.leave(ids[0], ids[1], "stranger") == [NONE, NONE, UNKNOWN]
    assert box.heartbeat(ids[2]) is REBALANCE
    result = box.joined(box.join(ids[2]))
    assert (result.generation, result.leader) == (2, ids[2])


def test_last_member_leaves() -> None:
    box = GroupBox()
    (member,) = box.stable()
    assert box.leave(member) == [NONE]
    assert box.group.state is GroupState.EMPTY
    assert box.group.protocol_type == "consumer"
    assert box.group.next_deadline() is None


def test_pending_id_leaves_without_a_rebalance() -> None:
    box = GroupBox()
    (member,) = box.stable()
    pending = box.joined(box.join(require_member_id=True)).member_id
    assert box.leave(pending) == [NONE]
    assert box.heartbeat(member) is NONE


def test_pending_id_that_leaves_lets_the_rebalance_complete() -> None:
    box = GroupBox()
    (member,) = box.stable()
    pending = box.joined(box.join(require_member_id=True)).member_id
    token = box.join(member)
    assert box.parked(token)
    box.leave(pending)
    assert box.joined(token).generation == 2


def test_leaving_while_parked_is_answered() -> None:
    box = GroupBox()
    token = box.join()
    member_id = next(iter(box.group.members)).member_id
    box.leave(member_id)
    assert box.joined(token).error is UNKNOWN
    box.sleep(10)
    assert box.group.state is GroupState.EMPTY


def test_static_member_leaves_by_instance_id_alone() -> None:
    box = GroupBox()
    box.stable(instance_id="one")
    assert box.leave(Leave("", "two"), Leave("", "one")) == [UNKNOWN, NONE]
    assert box.group.state is GroupState.EMPTY


def test_static_member_leaves_under_a_wrong_id() -> None:
    box = GroupBox()
    (member,) = box.stable(instance_id="one")
    assert box.leave(Leave("other", "one"), Leave(member, "two")) == [ErrorCode.FENCED_INSTANCE_ID, UNKNOWN]
    assert box.leave(Leave(member, "one")) == [NONE]


@pytest.mark.slow
@pytest.mark.parametrize("metadata", [0, 50, 5000])
@pytest.mark.parametrize("protocols", [1, 100])
def test_members_count_what_their_protocols_take(protocols: int, metadata: int) -> None:
    """However short their names are, and what is said of them."""
    box = GroupBox()
    gc.collect()
    tracemalloc.start()
    try:
        for member in range(2_000 // protocols):
            named = tuple((f"p{number:02}", bytes([member % 256]) * metadata) for number in range(protocols))
            box.join(protocols=named)
        del named
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.4 * box.group.size < taken < 1.2 * box.group.size


# ---- static members (KIP-345) -------------------------------------------------------------------------------------


def static_pair(**settings: int) -> tuple[GroupBox, str, str]:
    """A stable group of a static leader ("one") and a static follower ("two")."""
    box = GroupBox(**settings)
    tokens = [box.join(instance_id="one"), box.join(instance_id="two")]
    box.sleep(6.1)
    one, two = (box.joined(token).member_id for token in tokens)
    assert box.group.members.leader == one
    box.sync(one, instance_id="one", assignments={one: b"1", two: b"2"})
    box.sync(two, instance_id="two")
    return box, one, two


def test_static_follower_comes_back_without_a_rebalance() -> None:
    box, one, two = static_pair()
    result = box.joined(box.join(instance_id="two"))
    assert (result.error, result.generation, result.leader) == (NONE, 1, one)
    assert result.member_id != two
    assert box.group.state is GroupState.STABLE
    assert box.synced(box.sync(result.member_id, instance_id="two")).assignment == b"2"
    assert box.heartbeat(two, instance="two") is ErrorCode.FENCED_INSTANCE_ID
    assert box.commit(two, instance="two") is ErrorCode.FENCED_INSTANCE_ID
    assert box.joined(box.join(two, instance_id="two")).error is ErrorCode.FENCED_INSTANCE_ID
    assert box.synced(box.sync(two, instance_id="two")).error is ErrorCode.FENCED_INSTANCE_ID
    assert {member.member_id for member in box.stored[-1].members} == {one, result.member_id}


def test_static_leader_comes_back_with_an_old_client() -> None:
    box, one, _ = static_pair()
    result = box.joined(box.join(instance_id="one"))
    assert result.leader == one  # the old id, so that it does not assign
    assert result.members == ()
    assert not result.skip_assignment
    assert box.group.members.leader == result.member_id


def test_static_leader_comes_back_and_skips_the_assignment() -> None:
    box, _, two = static_pair()
    result = box.joined(box.join(instance_id="one", can_skip_assignment=True))
    assert result.leader == result.member_id
    assert result.skip_assignment
    assert {member for member, _, _ in result.members} == {result.member_id, two}


def test_static_member_with_another_protocol_rebalances_if_that_changes_the_choice() -> None:
    box = GroupBox()
    both = (("range", b""), ("sticky", b""))
    token = box.join(instance_id="one", protocols=both)
    box.sleep(3.1)
    box.sync(box.joined(token).member_id, instance_id="one")
    again = box.join(instance_id="one", protocols=(("sticky", b""),))
    assert box.joined(again).generation == 2
    assert box.joined(again).protocol_name == "sticky"


def test_static_member_comes_back_while_completing() -> None:
    box = GroupBox()
    tokens = [box.join(instance_id="one"), box.join(instance_id="two")]
    box.sleep(6.1)
    one, two = (box.joined(token).member_id for token in tokens)
    parked = box.sync(two, instance_id="two")
    again = box.join(instance_id="two")
    assert box.synced(parked).error is ErrorCode.FENCED_INSTANCE_ID
    assert box.parked(again)
    assert box.synced(box.sync(one, instance_id="one")).error is REBALANCE
    leading = box.join(one, instance_id="one")
    assert box.joined(again).generation == box.joined(leading).generation == 2


def test_static_member_comes_back_while_its_join_is_parked() -> None:
    box = GroupBox()
    first = box.join(instance_id="one")
    second = box.join(instance_id="one")
    assert box.joined(first).error is ErrorCode.FENCED_INSTANCE_ID
    box.sleep(3.1)
    assert box.joined(second).error is NONE
    assert len(box.group.members) == 1


def test_a_static_member_counts_with_the_ids_under_which_it_came_back() -> None:
    box = GroupBox(group_initial_rebalance_delay_ms=0)
    box.stable(instance_id="i")
    before = box.group.size
    back = box.join(instance_id="i", client_id="c" * 30_000)
    assert box.joined(back).error is ErrorCode.NONE
    assert before + 29_000 < box.group.size < before + 31_000
    assert box.leave(Leave("", "i")) == [ErrorCode.NONE]
    assert box.group.size == 0


def test_unknown_instance_with_a_member_id() -> None:
    box, one, _ = static_pair()
    assert box.joined(box.join(one, instance_id="three")).error is UNKNOWN
    assert box.heartbeat(one, instance="three") is UNKNOWN


def test_static_member_that_does_not_rejoin_keeps_its_place() -> None:
    box = GroupBox()
    tokens = [
        box.join(instance_id="one", session_timeout_ms=120_000),
        box.join(instance_id="two", session_timeout_ms=120_000),
    ]
    box.sleep(6.1)
    one, two = (box.joined(token).member_id for token in tokens)
    box.sync(one, instance_id="one")
    box.sync(two, instance_id="two")
    token = box.join(one, instance_id="one", session_timeout_ms=120_000)
    box.sleep(30.1)
    assert {member for member, _, _ in box.joined(token).members} == {one, two}


def test_rebalance_of_absent_static_members_goes_on_until_their_sessions_end() -> None:
    box = GroupBox()
    tokens = [
        box.join(instance_id="one", session_timeout_ms=50_000),
        box.join(session_timeout_ms=50_000),
    ]
    box.sleep(6.1)
    one, dynamic = (box.joined(token).member_id for token in tokens)
    box.sync(one, instance_id="one")
    box.sync(dynamic)
    box.leave(dynamic)  # and the static one does not come
    box.sleep(40)
    assert box.group.state is GroupState.PREPARING_REBALANCE
    assert box.group.generation == 1
    box.sleep(60)
    assert box.group.state is GroupState.EMPTY


def test_absent_static_members_with_a_rebalance_timeout_of_zero_do_not_spin() -> None:
    box, one, two = static_pair()
    for member in box.group.members:
        member.rebalance_timeout_ms = 0
    box.leave(Leave(one, "one"))
    box.run(box.group.advance(box.now))
    assert box.group.state is GroupState.PREPARING_REBALANCE
    assert two in box.group.members
    assert box.group.next_deadline() == box.now + 1.0


def test_failed_store_of_a_replacement() -> None:
    box, _, _ = static_pair()
    box.hold = True
    token = box.join(instance_id="two")
    box.finish_stores(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert box.joined(token).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    box.hold = False
    assert box.joined(box.join(instance_id="two")).error is NONE
    assert len(box.group.members) == 2


def test_rebalance_while_a_replacement_is_stored() -> None:
    box, one, _ = static_pair()
    box.hold = True
    token = box.join(instance_id="two")
    leading = box.join(one, instance_id="one")
    assert box.joined(token).generation == box.joined(leading).generation == 2
    box.finish_stores()
    assert box.group.state is GroupState.COMPLETING_REBALANCE


# ---- the end and the beginning ---------------------------------------------------------------------------


def test_restored_members_go_on() -> None:
    box = GroupBox()
    leader, follower = box.stable(2)
    again = GroupBox(now=5000.0)
    again.run(again.group.restore(box.stored[-1], again.now))
    assert again.group.state is GroupState.STABLE
    assert again.group.members.leader == leader
    assert again.heartbeat(leader) is NONE
    assert again.commit(follower) is NONE
    assert again.synced(again.sync(follower)).assignment == follower.encode()
    again.sleep(60)
    assert again.group.state is GroupState.EMPTY


def test_generation_grows_over_a_restart_of_an_empty_group() -> None:
    box = GroupBox()
    (member,) = box.stable()
    box.leave(member)
    again = GroupBox()
    again.run(again.group.restore(box.stored[-1], again.now))
    assert again.group.state is GroupState.EMPTY
    token = again.join()
    again.sleep(3.1)
    assert again.joined(token).generation == 3


def test_unloading_answers_everyone() -> None:
    box = GroupBox()
    join = box.join()
    box.run(box.group.unload())
    assert box.joined(join).error is ErrorCode.NOT_COORDINATOR
    for error in (box.joined(box.join()).error, box.synced(box.sync("x")).error, box.heartbeat("x"), box.commit("x")):
        assert error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert box.group.next_deadline() is None


def test_deleting() -> None:
    box = GroupBox()
    (member,) = box.stable()
    assert box.group.delete() is ErrorCode.NON_EMPTY_GROUP
    box.leave(member)
    assert box.group.delete() is NONE
    assert box.group.delete() is ErrorCode.GROUP_ID_NOT_FOUND
