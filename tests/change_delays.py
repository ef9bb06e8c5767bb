"""How long after a change was acknowledged at one gateway the others tell of it, to clients on sockets."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio

from kclient.errors import ErrorCode
from kclient.protocol import messages as m
from tests.wire_session import WireSession, wire_session

CHANGES = ("created", "settings changed", "grown", "deleted")
_PAUSES_S = (0.0, 0.01, 0.1, 0.5)
"""Between changes: gateways look more often while others come, and have to be woken after."""
_PATIENCE_S = 30.0
_TOPIC = 2


async def measure(bootstraps: Sequence[str], times: int, seed: int = 0) -> dict[str, list[float]]:
    """Change topics at each gateway in turn, and ask all others until they tell of it.

    Args:
        bootstraps: The gateways' addresses, at least two.
        times: How many topics are created, changed, grown and deleted.
        seed: Of the pauses in between.

    Returns:
        By the change, the seconds from its acknowledgement until the last of the others told of it; 0 where they all
        did before.
    """
    chance = random.Random(seed)
    found: dict[str, list[float]] = {change: [] for change in CHANGES}
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(wire_session(each)) for each in bootstraps]
        for number in range(times):
            name = f"changed-{number}"
            for place, change in enumerate(CHANGES):
                await anyio.sleep(chance.choice(_PAUSES_S))
                maker = wires[(number + place) % len(wires)]
                others = [wire for wire in wires if wire is not maker]
                make, seen = _steps(change, name, number)
                found[change].append(await _delay(maker, others, make, seen))
    return found


async def _delay(
    maker: WireSession,
    others: Sequence[WireSession],
    make: Callable[[WireSession], Awaitable[int]],
    seen: Callable[[WireSession], Awaitable[bool]],
) -> float:
    last = 0.0

    async def watch(wire: WireSession) -> None:
        nonlocal last
        while not await seen(wire):
            await anyio.sleep(0.001)
        last = max(last, time.perf_counter())

    with anyio.fail_after(_PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for wire in others:
                tasks.start_soon(watch, wire)
            code = await make(maker)
            assert code == ErrorCode.NONE, ErrorCode(code)
            acknowledged = time.perf_counter()
    return max(last - acknowledged, 0.0)


def _steps(
    change: str, name: str, number: int
) -> tuple[Callable[[WireSession], Awaitable[int]], Callable[[WireSession], Awaitable[bool]]]:
    """What makes a change, and answers with an error code; and what tells whether a gateway knows of it."""

    async def topic(wire: WireSession) -> Any:
        asked = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        return (await wire(asked)).topics[0]

    async def create(wire: WireSession) -> int:
        wanted = m.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
        return int((await wire(m.CreateTopicsRequest(topics=[wanted], timeout_ms=9000))).topics[0].error_code)

    async def alter(wire: WireSession) -> int:
        rows = [m.IncrementalAlterConfigsRequestConfig(name="retention.ms", config_operation=0, value=f"{number + 1}")]
        wanted = m.IncrementalAlterConfigsRequestResource(resource_type=_TOPIC, resource_name=name, configs=rows)
        return int((await wire(m.IncrementalAlterConfigsRequest(resources=[wanted]))).responses[0].error_code)

    async def grow(wire: WireSession) -> int:
        wanted = m.CreatePartitionsTopic(name=name, count=3, assignments=None)
        return int((await wire(m.CreatePartitionsRequest(topics=[wanted], timeout_ms=9000))).results[0].error_code)

    async def delete(wire: WireSession) -> int:
        wanted = m.DeleteTopicsRequest(topics=[m.DeleteTopicState(name=name)], topic_names=[name], timeout_ms=9000)
        return int((await wire(wanted)).responses[0].error_code)

    async def is_there(wire: WireSession) -> bool:
        return bool((await topic(wire)).error_code == ErrorCode.NONE)

    async def is_altered(wire: WireSession) -> bool:
        wanted = m.DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=name, configuration_keys=["retention.ms"]
        )
        (result,) = (await wire(m.DescribeConfigsRequest(resources=[wanted]))).results
        return [row.value for row in result.configs] == [f"{number + 1}"]

    async def is_grown(wire: WireSession) -> bool:
        return len((await topic(wire)).partitions) == 3

    async def is_gone(wire: WireSession) -> bool:
        return bool((await topic(wire)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    return {
        "created": (create, is_there),
        "settings changed": (alter, is_altered),
        "grown": (grow, is_grown),
        "deleted": (delete, is_gone),
    }[change]
