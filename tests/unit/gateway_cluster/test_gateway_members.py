"""Who of the other gateways counts as live: by rows and leases as they were seen, and one's own clock."""

from __future__ import annotations

from random import Random

import pytest

from kclient.gateway.membership import Members
from kclient.gateway.membership.states import GatewayState
from kclient.gateway.rows.gateways import Endpoint, FeatureRange, GatewayRow
from kclient.htp.leases import DRIFT
from kclient.htp.port import LeaseInfo

TTL = 10.0


def row(node_id: int, epoch: int = 1, host: str = "h") -> GatewayRow:
    return GatewayRow(node_id, f"run {epoch}", epoch, {"PLAINTEXT": Endpoint(host, 9092, "PLAINTEXT")}, "rack")


def lease(node_id: int, epoch: int = 1, version: int = 1, *, held: bool = True) -> LeaseInfo:
    return LeaseInfo(f"kafka/node/{node_id}", f"node-{node_id}", epoch, TTL, held, version)


def numbers(members: Members) -> list[int]:
    return [each.node_id for each in members.others]


def live(*node_ids: int) -> Members:
    members = Members(1)
    for node_id in node_ids:
        members.row_seen(row(node_id), node_id)
    members.leases_seen([lease(node_id) for node_id in node_ids], 0.0)
    assert numbers(members) == sorted(node_ids)
    return members


def test_one_is_live_once_its_lease_was_seen() -> None:
    members = Members(1)
    assert (members.state(2), len(members)) == (GatewayState.ABSENT, 0)
    members.row_seen(row(2), 5)
    assert (members.state(2), numbers(members)) == (GatewayState.JOINING, [])
    assert members.leases_seen([lease(2)], 100.0) == TTL * (1 + DRIFT)
    assert (members.state(2), members.others) == (GatewayState.LIVE, (row(2),))


def test_by_number_and_without_oneself() -> None:
    members = live(7, 3, 5)
    members.row_seen(row(1), 90)
    members.leases_seen([lease(number) for number in (1, 3, 5, 7)], 1.0)
    assert numbers(members) == [3, 5, 7]
    assert 1 not in members


def test_a_lease_that_is_not_renewed_is_over_after_its_length_and_a_bit() -> None:
    members = live(2)
    assert members.leases_seen([lease(2)], 4.0) == pytest.approx(TTL * (1 + DRIFT) - 4)
    assert numbers(members) == [2]
    assert members.leases_seen([lease(2)], 8.0) == pytest.approx(TTL * (1 + DRIFT) - 8)
    assert members.leases_seen([lease(2)], TTL * (1 + DRIFT)) is None
    assert (members.state(2), numbers(members)) == (GatewayState.LOST, [])
    members.leases_seen([lease(2, version=2)], 50.0)
    assert numbers(members) == [2], "it could not reach the store for a while"


def test_each_renewal_counts_anew() -> None:
    members = live(2)
    for version in range(2, 30):
        members.leases_seen([lease(2, version=version)], version * TTL)
        assert numbers(members) == [2]


def test_one_that_watched_nothing_for_long_takes_nobody_for_lost() -> None:
    members = live(2)
    members.leases_seen([lease(2, version=9)], 10_000.0)
    members.leases_seen([lease(2, version=9)], 20_000.0)
    assert numbers(members) == [2]


@pytest.mark.parametrize(
    "seen", [[], [lease(2, held=False)], [lease(2, epoch=2)]], ids=["none", "given up", "of the next run"]
)
def test_a_lease_that_is_over_at_once(seen: list[LeaseInfo]) -> None:
    members = live(2)
    assert members.leases_seen(seen, 1.0) is None
    assert (members.state(2), numbers(members)) == (GatewayState.LOST, [])


def test_the_next_run_of_a_number() -> None:
    members = live(2)
    members.leases_seen([lease(2, epoch=2)], 1.0)
    members.row_seen(row(2, epoch=2, host="elsewhere"), 8)
    assert members.state(2) is GatewayState.JOINING
    assert members.leases_seen([lease(2, epoch=1)], 2.0) is None, "it was read before the row was"
    assert members.state(2) is GatewayState.JOINING
    members.leases_seen([lease(2, epoch=2)], 2.0)
    assert members.others == (row(2, epoch=2, host="elsewhere"),)


def test_a_run_that_tells_another_address() -> None:
    members = live(2)
    before = members.others
    members.row_seen(row(2), 7)
    assert members.others is before
    members.row_seen(row(2, host="elsewhere"), 8)
    assert members.others == (row(2, host="elsewhere"),)


def test_what_is_old_is_no_news() -> None:
    members = live(5)
    members.row_seen(row(5, epoch=3, host="older"), 5)
    members.row_gone(5, 5)
    members.row_gone(9, 9)
    assert numbers(members) == [5]
    members.row_gone(5, 6)
    assert (numbers(members), members.state(5), len(members)) == ([], GatewayState.ABSENT, 0)


def test_rows_that_are_not_there_any_more() -> None:
    members = live(2, 3, 4)
    members.only([3])
    assert numbers(members) == [3]


def test_leases_of_others_are_left_alone() -> None:
    members = live(2)
    members.leases_seen([LeaseInfo("kafka/node/x", "?", 1, TTL, True, 1), lease(2)], 1.0)
    assert numbers(members) == [2]


@pytest.mark.parametrize("seed", range(30))
def test_who_renews_is_live_and_who_does_not_is_found_out(seed: int) -> None:
    """Gateways that renew in time, crash, and start again; a watcher looks when it gets round to it."""
    dice = Random(seed)
    members = Members(0)
    now, revision = 0.0, 0
    epochs = dict.fromkeys(range(1, 5), 0)
    leases: dict[int, LeaseInfo] = {}
    renewed: dict[int, float] = {}
    stopped: dict[int, float] = {}
    """When the watcher first looked at a lease after its holder had ended."""
    looked = 0.0
    for _ in range(400):
        now += dice.random() * TTL / 10
        for node_id in epochs:
            found = leases.get(node_id)
            if node_id not in renewed:
                if dice.random() < 0.05:
                    epochs[node_id] += 1
                    version = 1 if found is None else found.version + 1
                    leases[node_id] = lease(node_id, epochs[node_id], version)
                    revision += 1
                    members.row_seen(row(node_id, epochs[node_id]), revision)
                    renewed[node_id] = now
                    stopped.pop(node_id, None)
            elif dice.random() < 0.02:
                del renewed[node_id]
            elif now > renewed[node_id] + TTL / 3:
                assert found is not None
                leases[node_id] = found._replace(version=found.version + 1)
                renewed[node_id] = now
        if dice.random() < 0.5 or now > looked + TTL / 3:
            looked = now
            left = members.leases_seen(list(leases.values()), now)
            assert left is None or 0 < left <= TTL * (1 + DRIFT) + 0.001
            for node_id in epochs.keys() - renewed.keys():
                if epochs[node_id]:
                    stopped.setdefault(node_id, now)
            told = set(numbers(members))
            assert renewed.keys() <= told, "who renews in time is never lost"
            late = {each for each in told - renewed.keys() if now > stopped[each] + TTL * (1 + DRIFT)}
            assert not late, "who has ended is found out"


def test_a_row_says_all_of_it() -> None:
    there = GatewayRow(
        7, "abc", 3, {"PLAINTEXT": Endpoint("h", 1, "PLAINTEXT"), "OUT": Endpoint("ö", 65535, "SASL_SSL")}, None,
        {"transaction.version": FeatureRange(0, 2)},
    )  # fmt: skip
    assert GatewayRow.decode(there.encode()) == there
    assert GatewayRow.decode(row(2).encode()) == row(2)
