"""Who leads which unit, under which epoch: the same for all, with as few moves as can be."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kclient.gateway.assignment import Assigned, Generation, Generations, fingerprint
from kclient.gateway.assignment.generations import KEPT
from kclient.gateway.assignment.rendezvous import chosen
from kclient.gateway.assignment.unit_states import UNIT_TABLE, UnitEvent, UnitState
from kclient.htp import HtpError
from kclient.htp.rows import GREATEST_EPOCH
from tests.sweeps import slow

UNITS = [fingerprint(b"unit %d" % number) for number in range(3000)]


def alone(node_id: int = 1) -> Generations:
    return Generations([Generation(5, {node_id: 1})])


def test_it_is_the_same_everywhere_and_for_ever() -> None:
    """Two releases may serve one store."""
    assert fingerprint(b"unit 0") == 0x822F334166C422EC
    assert [chosen(unit, [3, 1, 2]) for unit in UNITS[:12]] == [1, 2, 3, 3, 1, 1, 2, 2, 2, 1, 3, 1]


@pytest.mark.parametrize("count", [2, 3, 5, 16])
def test_each_gateway_has_about_as_many(count: int) -> None:
    owned = Counter(chosen(unit, range(count)) for unit in UNITS)
    share = len(UNITS) / count
    assert len(owned) == count
    assert all(abs(each - share) < 5 * share**0.5 for each in owned.values()), owned


@pytest.mark.parametrize("count", [1, 2, 5])
def test_only_what_has_to_move_does(count: int) -> None:
    members = dict.fromkeys(range(1, count + 1), 1)
    before = Generations([Generation(1, members)])
    joined = before.followed_by({**members, 9: 1})
    moves = before.moves(joined, UNITS)
    assert {move.after for move in moves} == {Assigned(9, 2)}
    share = len(UNITS) / (count + 1)
    assert abs(len(moves) - share) < 5 * share**0.5
    left = joined.followed_by(members)
    back = joined.moves(left, UNITS)
    assert {move.unit for move in back} == {move.unit for move in moves}
    assert {(move.before.node_id, move.after.epoch) for move in back} == {(9, 3)}


def test_a_gateway_that_starts_anew_leads_the_same_under_a_greater_epoch() -> None:
    first = Generations([Generation(5, {1: 1, 2: 1})])
    second = first.followed_by({1: 1, 2: 2}, above=70)
    for move in first.moves(second, UNITS):
        assert (move.before, move.after) == (Assigned(2, 5), Assigned(2, 71))


@pytest.mark.parametrize("seed", [0, 1, *slow(2, 3, 4)])
def test_no_epoch_is_given_twice_or_goes_back(seed: int) -> None:
    """Whatever comes and goes: of a unit an epoch has one leader, and later leaders have greater ones."""
    dice = Random(seed)
    generations, runs = alone(), dict.fromkeys(range(1, 7), 1)
    told: dict[int, Assigned] = {}
    units = UNITS[:15]
    for _ in range(5 * KEPT):
        members = dict(generations.newest.members)
        node_id = dice.choice(sorted(runs))
        if members.pop(node_id, None) is None or not members or dice.random() < 0.3:
            runs[node_id] += 1
            members[node_id] = runs[node_id]
        following = generations.followed_by(members, dice.choice([0, 0, generations.newest.number + 3]))
        assert following.newest.members == members
        assert len(following.kept) <= 2 * KEPT
        for unit in units:
            before, after = told.get(unit), following.leader(unit)
            assert after.node_id in members
            assert before is None or after == before or after.epoch > before.epoch
            assert Generations(following.kept).leader(unit) == after
            told[unit] = after
        generations = following


def test_epochs_of_others_stay_while_some_come_and_go() -> None:
    generations = Generations([Generation(1, {1: 1, 2: 1, 3: 1})])
    before = {unit: generations.leader(unit) for unit in UNITS}
    for _ in range(KEPT // 2):
        generations = generations.followed_by({1: 1, 2: 1}).followed_by({1: 1, 2: 1, 3: 1})
    for unit, assigned in before.items():
        if assigned.node_id != 3:
            assert generations.leader(unit) == assigned


def test_the_controller_is_the_one_with_the_smallest_number() -> None:
    assert Generations([Generation(1, {7: 1, 3: 2})]).controller_id == 3


@pytest.mark.parametrize(
    "kept",
    [[], [Generation(1, {})], [Generation(2, {1: 1}), Generation(2, {1: 1})]],
    ids=["none", "empty", "backwards"],
)
def test_what_are_no_generations(kept: list[Generation]) -> None:
    with pytest.raises(ValueError, match="generation"):
        Generations(kept)


def test_generations_come_to_an_end() -> None:
    with pytest.raises(HtpError, match="no generation"):
        alone().followed_by({1: 1}, GREATEST_EPOCH)


def test_a_unit_is_served_only_while_it_is_led() -> None:
    """No gateway serves a unit before its former leader has released it, or is too late, whatever happens."""
    served = {state for state, row in UNIT_TABLE.items() if UnitState.LED in row.values()}
    assert served == {UnitState.AWAITED, UnitState.CLAIMED, UnitState.RETURNING}
    into = {event for row in UNIT_TABLE.values() for event, state in row.items() if state is UnitState.LED}
    assert into == {UnitEvent.HANDED_OVER, UnitEvent.CLAIM_WRITTEN, UnitEvent.RELEASE_WRITTEN}
    assert all(row.get(UnitEvent.FENCED, UnitState.ELSEWHERE) is UnitState.ELSEWHERE for row in UNIT_TABLE.values())
