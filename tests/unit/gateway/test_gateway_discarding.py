"""What a request held is freed in steps, however deep it lay."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import pytest

from kclient.gateway.discarding import emptied_message
from kclient.protocol import ApiMessage
from kclient.protocol.messages import FetchRequest, StreamsGroupHeartbeatRequest
from kclient.protocol.messages import fetch as fetch_
from kclient.protocol.messages import streams as streams_


def topology(subtopologies: int, topics: int, configs: int) -> StreamsGroupHeartbeatRequest:
    return StreamsGroupHeartbeatRequest(
        topology=streams_.StreamsGroupHeartbeatRequestTopology(
            subtopologies=[
                streams_.StreamsGroupHeartbeatRequestSubtopology(
                    state_changelog_topics=[
                        streams_.StreamsGroupHeartbeatRequestTopicInfo(
                            name=f"t-{number}",
                            topic_configs=[
                                streams_.StreamsGroupHeartbeatRequestKeyValue(key=f"k-{config}")
                                for config in range(configs)
                            ],
                        )
                        for number in range(topics)
                    ],
                    source_topics=[f"s-{number}" for number in range(topics)],
                )
                for _ in range(subtopologies)
            ]
        )
    )


def fetch(topics: int, partitions: int) -> FetchRequest:
    return FetchRequest(
        topics=[
            fetch_.FetchRequestTopic(
                topic=f"t-{topic}",
                partitions=[fetch_.FetchRequestPartition(partition=number) for number in range(partitions)],
            )
            for topic in range(topics)
        ]
    )


KINDS = (
    fetch_.FetchRequestPartition,
    fetch_.FetchRequestTopic,
    streams_.StreamsGroupHeartbeatRequestKeyValue,
    streams_.StreamsGroupHeartbeatRequestTopicInfo,
    streams_.StreamsGroupHeartbeatRequestSubtopology,
)


def there() -> int:
    """How many of these objects there are, wherever they are held."""
    return sum(type(each) in KINDS for each in gc.get_objects())


@pytest.mark.parametrize(
    "make",
    [
        partial(topology, 1, 3000, 0), partial(topology, 1, 1, 3000), partial(topology, 12, 10, 20),
        partial(topology, 3000, 0, 0), partial(fetch, 1, 3000), partial(fetch, 3000, 1), partial(fetch, 10, 300),
    ],
    ids=["topics", "settings", "some of each", "subtopologies", "partitions", "topics to fetch", "both"],
)  # fmt: skip
def test_a_few_objects_go_at_a_time(make: Callable[[], ApiMessage]) -> None:
    others = there()
    request = make()
    left = there() - others
    assert left > 2000
    most = 0
    for _ in emptied_message(request):
        left, before = there() - others, left
        most = max(most, before - left)
    assert max(most, left) <= 1024
    assert there() == others
