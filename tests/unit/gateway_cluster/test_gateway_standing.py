"""What a gateway tells of how it stands in its cluster, as settings of a broker that cannot be set."""

from __future__ import annotations

import pytest

from kclient.errors import ErrorCode
from kclient.gateway.assignment import Cause, CauseKind, Generation, Generations
from kclient.gateway.rows.assignment import decode_generations, encode_generations
from kclient.htp import open_store
from kclient.htp.rows import dump, seal
from kclient.protocol import messages as m
from tests.gateway_wire import Wire, batch_of
from tests.unit.gateway_cluster.together import joined
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = pytest.mark.anyio

TOLD = ["htp.lease.age.ms", "htp.checkpoints.behind", "htp.generations"]


async def standing(wire: Wire, number: int) -> dict[str, str]:
    resource = m.DescribeConfigsResource(resource_type=4, resource_name=str(number), configuration_keys=TOLD)
    (row,) = (await wire(m.DescribeConfigsRequest(resources=[resource]), 4)).results
    assert not row.error_code, row
    assert all(each.read_only for each in row.configs)
    return {each.name: each.value for each in row.configs}


async def test_gateways_tell_of_leases_checkpoints_and_why_generations_began(url: str) -> None:
    async with open_store(url) as store, joined(store, 1) as (one, wire), joined(store, 2) as (two, other):
        await until(lambda: two.parts.leadership.generation == one.parts.leadership.generation)
        found = await standing(wire, 1)
        assert list(found) == TOLD
        assert 0 <= int(found["htp.lease.age.ms"]) < 30_000
        assert found["htp.checkpoints.behind"] == "0"
        number = (await standing(other, 2))["htp.generations"].split(" ")[0]
        assert found["htp.generations"] == f"{number} joined 2"
        await wire.create("t")
        leader = (await wire.metadata("t")).topics[0].partitions[0].leader_id
        await until(lambda: (one, two)[leader - 1].parts.topics.get("t"))
        at = (wire, other)[leader - 1]
        assert not (await at.produce("t", batch_of(b"v"))).error_code
        assert (await standing(at, leader))["htp.checkpoints.behind"] == "1"
        generation = one.parts.leadership.generation
        await two.close()
        await until(lambda: one.parts.leadership.generation > generation)
        assert (await standing(wire, 1))["htp.generations"].endswith(" left 2")
        assert await wire.alter(4, "1", ("htp.generations", 0, "x")) == ErrorCode.INVALID_CONFIG


def test_causes_are_kept_with_their_generations() -> None:
    generations = Generations([Generation(3, {1: 7})])
    for number in range(100):
        generations = generations.followed_by({1: 7, 2: number}, cause=Cause(CauseKind.JOINED, 2))
    assert set(generations.causes) == {each.number for each in generations.kept}
    decoded = decode_generations(encode_generations(generations))
    assert decoded.causes == generations.causes
    assert decoded.kept == generations.kept


def test_causes_of_later_versions_are_passed_over() -> None:
    row = {
        "format": 1,
        "generations": [[3, [[1, 7]]], [4, [[1, 7]]]],
        "causes": [[3, "weather", 1], [4, "by hand", None]],
    }
    assert decode_generations(seal(dump(row))).causes == {4: Cause(CauseKind.BY_HAND)}
    for damaged in (7, [[3]], [[3, "joined", "x"]], [[3, [], 1]]):
        with pytest.raises(ValueError, match=r"\w"):
            decode_generations(seal(dump({**row, "causes": damaged})))
