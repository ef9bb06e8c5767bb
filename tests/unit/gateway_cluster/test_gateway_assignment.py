"""Who leads which unit, under which epoch: the same for all, with as few moves as can be."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kclient.gateway.assignment import Assigned, Generation, Generations, fingerprint
from kclient.gateway.assignment.generations import KEPT, MOST_KEPT
from kclient.gateway.assignment.rendezvous import chosen
from kclient.gateway.rows.assignment import decode_generations, encode_generations
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *slow(2, 3, 4)])
def test_epochs_outlast_any_number_of_moves_by_hand(seed: int) -> None:
    """Few gateways come and go, and much is moved: no epoch changes but that of what gets another leader."""
    dice = Random(seed)
    generations, runs, units = Generations([Generation(5, {1: 1, 2: 1, 3: 1})]), {1: 1, 2: 1, 3: 1}, UNITS[:15]
    told = {unit: generations.leader(unit) for unit in UNITS[:30]}
    for step in range(10 * KEPT):
        members, moved = dict(generations.newest.members), dict(generations.newest.moved)
        if step % (2 * KEPT) == 40:
            runs[dice.choice([1, 2, 3])] += 1
            members = dict(runs)
        for unit in dice.sample(units, 3):
            moved[unit] = dice.choice([1, 2, 3])
        moved.pop(dice.choice(units), None)
        before, generations = generations, generations.followed_by(members, moved=moved)
        again = decode_generations(encode_generations(generations))
        assert (again.kept, again.since, again.changes) == (generations.kept, generations.since, generations.changes)
        for unit, last in told.items():
            after = again.leader(unit)
            same = after.node_id == last.node_id and members[after.node_id] == before.newest.members[after.node_id]
            assert after == (last if same else (after.node_id, generations.newest.number))
            told[unit] = after


def test_generations_are_kept_whole_that_some_gateway_has_not_obeyed_yet() -> None:
    both, unit = {1: 1, 2: 1}, next(each for each in UNITS if chosen(each, [1, 2]) == 1)
    generations = Generations([Generation(5, both)]).followed_by(both, moved={unit: 2})
    for step in range(MOST_KEPT - 2):
        generations = generations.followed_by(both, moved={unit: 2, UNITS[-1]: 1 + step % 2}, settled=5)
        assert generations.former(unit) == {(1, 1): 6}
    assert generations.leader(unit) == (2, 6)
    following = generations.followed_by(both, settled=6)  # no longer than that
    assert following.leader(unit) == (2, 6)
    assert not following.former(unit)
    assert len(following.kept) <= KEPT + 2


def test_who_was_away_for_long_knows_that_another_has_led_a_unit() -> None:
    """Also where no generation is kept any more that says to whom it was moved."""
    both = {1: 1, 2: 1}
    unit, other = (next(each for each in UNITS if chosen(each, [1, 2]) == number) for number in (1, 2))
    generations = Generations([Generation(5, both)])
    for step in range(4 * KEPT):
        generations = generations.followed_by(both, moved={unit: 2} if step == 3 else {other: 1 + step % 2})
    assert generations.leader(unit) == (1, 10)
    assert not generations.former(unit)
    assert generations.taken_away(unit, 1, 1) > 5
    stays = next(each for each in reversed(UNITS) if chosen(each, [1, 2]) == 1)
    assert generations.taken_away(stays, 1, 1) == 0


@pytest.mark.slow
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


def test_one_that_leads_everything() -> None:
    """Under one epoch, so that nobody has to ask for each unit."""
    first = alone()
    assert first.everything == Assigned(1, 5)
    stays = first.followed_by({1: 1})
    assert stays.everything == Assigned(1, 5)
    assert stays.followed_by({1: 2}).everything == Assigned(1, 7), "another run"
    both = stays.followed_by({1: 1, 2: 1})
    assert both.everything is None
    assert both.followed_by({1: 1}).everything is None, "what it has led before has another epoch"
    assert both.followed_by({1: 2}).everything == both.followed_by({3: 1}).everything._replace(node_id=1)  # type: ignore[union-attr]
    for generations in (first, stays, both.followed_by({1: 2})):
        assert {generations.leader(unit) for unit in UNITS} == {generations.everything}


def test_who_has_led_a_unit_before() -> None:
    """And which generation took it away from each, last: only these are waited for."""
    first = Generations([Generation(5, {1: 1})])
    assert {str(first.former(unit)) for unit in UNITS[:50]} == {"{}"}
    joined = first.followed_by({1: 1, 2: 1})
    restarted = joined.followed_by({1: 1, 2: 2})
    left = restarted.followed_by({1: 1})
    back = left.followed_by({1: 1, 3: 1})
    seen = set()
    for unit in UNITS[:200]:
        owners = [each.owner(unit) for each in (first, joined, restarted, left, back)]
        seen.add(tuple(owners))
        expected: dict[tuple[int, int], int] = {}
        if owners[1] == 2:
            assert joined.former(unit) == {(1, 1): 6}
            expected = {(1, 1): 6, (2, 1): 7, (2, 2): 8}
        assert left.former(unit) == expected
        if owners[4] == 3:
            expected[1, 1] = 9
        assert back.former(unit) == expected
    assert len(seen) == 4
