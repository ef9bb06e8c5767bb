"""Topics that brokers tell of page by page (KIP-966), and what may happen between two pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kclient.admin import TopicDescription
from kclient.errors import ErrorCode, UnknownServerError, UnknownTopicOrPartitionError
from kclient.protocol.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kclient.protocol.registry import ApiKey
from tests.fake_kafka import FakeKafka
from tests.unit.admin.scripted import VERSIONS, administering

pytestmark = pytest.mark.anyio

WITH_PAGES = {**VERSIONS, ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0)}
ID, OTHER_ID = b"\1" * 16, b"\2" * 16


def page(
    *parts: tuple[str, range],
    after: tuple[str, int] | None = None,
    topic_id: bytes = ID,
    code: int = 0,
    elr: list[int] | None = None,
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic_id,
                error_code=code,
                partitions=[
                    DescribeTopicPartitionsResponsePartition(
                        partition_index=number, leader_id=1, leader_epoch=3, replica_nodes=[1, 9], isr_nodes=[1],
                        eligible_leader_replicas=elr, last_known_elr=elr,
                    )
                    for number in numbers
                ],
            )
            for name, numbers in parts
        ],
        next_cursor=after
        and DescribeTopicPartitionsResponseCursor(topic_name=after[0], partition_index=after[1]),
    )  # fmt: skip


class Pages:
    """Gives pages, and notes what was asked for."""

    def __init__(self, *pages: DescribeTopicPartitionsResponse) -> None:
        self.pages = list(pages)
        self.asked: list[tuple[list[str], int, tuple[str, int] | None]] = []

    def __call__(self, broker: Any, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
        cursor = request.cursor
        self.asked.append(
            (
                [topic.name for topic in request.topics],
                request.response_partition_limit,
                None if cursor is None else (cursor.topic_name, cursor.partition_index),
            )
        )
        return self.pages.pop(0)


async def described(pages: Callable[..., Any], names: list[str], **options: Any) -> dict[str, TopicDescription]:
    async with FakeKafka(versions=WITH_PAGES) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = pages
        return await admin.describe_topics(names, **options)


async def test_pages_are_put_together() -> None:
    pages = Pages(
        page(("a", range(1)), ("b", range(2)), after=("b", 2)),
        page(("b", range(2, 5)), after=("c", 0)),
        page(("c", range(3)), elr=[9]),
    )
    found = await described(pages, ["c", "b", "a"], partition_size_limit_per_response=3)
    assert {name: [info.partition for info in topic.partitions] for name, topic in found.items()} == {
        "a": [0],
        "b": [0, 1, 2, 3, 4],
        "c": [0, 1, 2],
    }
    assert pages.asked == [
        (["a", "b", "c"], 3, None),
        (["b", "c"], 3, ("b", 2)),
        (["c"], 3, ("c", 0)),
    ]
    info = found["c"].partitions[0]
    assert info.leader is not None
    assert info.leader.host
    assert info.eligible_leader_replicas == info.last_known_elr == info.replicas[1:]
    assert found["a"].partitions[0].eligible_leader_replicas is None


async def test_a_topic_created_again_between_two_pages_is_described_anew() -> None:
    pages = Pages(
        page(("a", range(2)), after=("a", 2)),
        page(("a", range(2, 4)), topic_id=OTHER_ID),
        page(("a", range(3)), topic_id=OTHER_ID),
    )
    found = await described(pages, ["a"])
    assert len(found["a"].partitions) == 3
    assert pages.asked[-1] == (["a"], 2000, None)


async def test_a_topic_deleted_between_two_pages_is_unknown() -> None:
    pages = Pages(
        page(("a", range(2)), after=("a", 2)),
        page(("a", range(0)), topic_id=bytes(16), code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    )
    with pytest.raises(UnknownTopicOrPartitionError, match="Topic 'a'"):
        await described(pages, ["a"])


@pytest.mark.parametrize("cursor", [("a", 2), ("a", 1), ("a", -1), ("z", 0)])
async def test_a_cursor_that_leads_nowhere_is_followed_for_no_time(cursor: tuple[str, int]) -> None:
    pages = Pages(page(("a", range(2)), after=("a", 2)), page(("a", range(2)), after=cursor))
    with pytest.raises(UnknownServerError, match="was not asked for or was told of before"):
        await described(pages, ["a"])


async def test_what_no_page_tells_of_is_unknown() -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="Topic 'b': The broker's answer leaves it out"):
        await described(Pages(page(("a", range(1)))), ["a", "b"])


async def test_without_names_nothing_is_told() -> None:
    """A page that is asked for without names tells of all topics there are."""
    pages = Pages(page(("a", range(2)), after=("b", 0)))
    assert await described(pages, []) == {}
    assert pages.asked == []


@pytest.mark.parametrize(
    ("limit", "error"), [(0, ValueError), (2**31, ValueError), ("3", TypeError), (None, TypeError)]
)
async def test_limits_that_cannot_be(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="partition_size_limit_per_response is "):
        await described(Pages(), ["a"], partition_size_limit_per_response=limit)
