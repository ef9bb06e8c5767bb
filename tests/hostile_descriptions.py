"""As `hostile_clients`: requests that name little, where the answer has very much about it."""

from __future__ import annotations

from kclient.protocol.messages import (
    DescribeConfigsRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kclient.protocol.messages import configs as configs_
from kclient.protocol.messages import metadata as metadata_
from kclient.protocol.messages import offsets as offsets_
from tests.hostile_clients import Course, Site, attack, numbered
from tests.neighbour_probe import framed

FEW = 60
"""So many things that few are asked for."""
TOPIC_RESOURCE = 2


@attack("few topics: all of their settings, with all synonyms")
def settings(site: Site) -> Course:
    names = numbered("set-", FEW)
    site.create(*names)
    resources = [configs_.DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name) for name in names]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    frame = framed(request, 4)
    yield
    site.repeat(frame, connections=4)


@attack("few topics: their 60,000 partitions")
def partitions(site: Site) -> Course:
    names = numbered("wide-", FEW)
    site.create(*names, partitions=site.many(1_000))
    topics = [metadata_.MetadataRequestTopic(name=name) for name in names]
    frames = [framed(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)]
    described = [metadata_.DescribeTopicPartitionsRequestTopicRequest(name=name) for name in names]
    frames.append(framed(DescribeTopicPartitionsRequest(topics=described, response_partition_limit=2_000), 0))
    yield
    site.repeat(*frames, connections=4)


@attack("few groups: their 60,000 offsets")
def groups(site: Site) -> Course:
    count, names = site.many(1_000), numbered("group-", FEW)
    site.create("read", partitions=count)
    rows = [
        offsets_.OffsetCommitRequestPartition(partition_index=number, committed_offset=1, committed_metadata="")
        for number in range(count)
    ]
    topics = [offsets_.OffsetCommitRequestTopic(name="read", partitions=rows)]
    with site.client() as client:
        for name in names:
            client.ask(framed(OffsetCommitRequest(group_id=name, topics=topics), 8))
    asked = [offsets_.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    frame = framed(OffsetFetchRequest(groups=asked), 8)
    yield
    site.repeat(frame, connections=4)
