"""Metadata: the gateway, its topics and their partitions; topics that are asked for are created if allowed."""

from __future__ import annotations

import logging
from functools import partial
from typing import ClassVar

from kclient.errors import (
    InvalidTopicError,
    KafkaError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.core import Core, RequestContext
from kclient.gateway.handlers import Finish, Handler
from kclient.gateway.handlers._errors import code_of
from kclient.gateway.topics import INTERNAL, TopicRecord, check_name
from kclient.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kclient.protocol.registry import ApiKey
from kclient.protocol.types import ZERO_UUID

logger: logging.Logger = logging.getLogger("kclient.gateway.metadata")

API_VERSIONS: dict[ApiKey, tuple[int, int]] = {ApiKey.METADATA: (0, 13)}
BY_ID_SINCE = 12


class MetadataHandler(Handler):
    """Answers Metadata."""

    API: ClassVar[ApiKey] = ApiKey.METADATA

    def begin(self, request: MetadataRequest, context: RequestContext) -> MetadataResponse | Finish:
        """Answer at once what is known; creating topics takes longer."""
        wanted = self._wanted(request, context.api_version)
        missing = [name for name in self._missing(wanted) if self._may_create(request, name)]
        if missing:
            return partial(self._create, missing, wanted, context)
        return self._respond(wanted, context)

    def fail(self, request: MetadataRequest, context: RequestContext, error: KafkaError) -> MetadataResponse | None:
        """Before v13 there is no place for an error of the whole response."""
        return MetadataResponse(error_code=code_of(error)) if context.api_version >= 13 else None

    def _wanted(self, request: MetadataRequest, version: int) -> list[MetadataRequestTopic]:
        if request.topics is None or (version == 0 and not request.topics):
            return [MetadataRequestTopic(name=name) for name in self.core.topics.names()]
        return request.topics

    def _missing(self, wanted: list[MetadataRequestTopic]) -> list[str]:
        topics = self.core.topics
        names = {topic.name for topic in wanted if topic.name is not None and topics.get(topic.name) is None}
        return sorted(names)

    def _may_create(self, request: MetadataRequest, name: str) -> bool:
        if not request.allow_auto_topic_creation or name in INTERNAL:
            return False
        if not self.core.config.get_bool("auto.create.topics.enable"):
            return False
        try:
            check_name(name)
        except InvalidTopicError:
            return False
        return True

    async def _create(
        self, missing: list[str], wanted: list[MetadataRequestTopic], context: RequestContext
    ) -> MetadataResponse:
        for name in missing:
            try:
                await self.core.topics.create(name)
            except TopicExistsError:  # another request was faster
                pass
            except KafkaError as error:
                logger.error("topic %s could not be created: %s", name, error)
        return self._respond(wanted, context)

    def _respond(self, wanted: list[MetadataRequestTopic], context: RequestContext) -> MetadataResponse:
        core, advertised = self.core, context.connection.advertised
        rack = core.config.get("broker.rack")
        broker = MetadataResponseBroker(
            node_id=core.node_id,
            host=advertised.host,
            port=advertised.port,
            rack=str(rack) if rack is not None else None,
        )
        return MetadataResponse(
            brokers=[broker],
            cluster_id=core.cluster_id,
            controller_id=core.node_id,
            topics=[self._topic(topic, context.api_version) for topic in wanted],
        )

    def _topic(self, wanted: MetadataRequestTopic, version: int) -> MetadataResponseTopic:
        topics = self.core.topics
        answer = MetadataResponseTopic(name=wanted.name)
        try:
            if wanted.name is not None:
                check_name(wanted.name)
                record = topics.get(wanted.name)
                if record is None:
                    raise UnknownTopicOrPartitionError(f"there is no topic {wanted.name}")
            elif version >= BY_ID_SINCE and wanted.topic_id != ZERO_UUID:
                answer.topic_id = wanted.topic_id
                record = topics.by_id(wanted.topic_id)
                if record is None:
                    raise UnknownTopicIdError(f"no topic has the id {wanted.topic_id.hex()}")
            else:
                raise InvalidTopicError("a topic without a name")
        except KafkaError as error:
            answer.error_code = code_of(error)
            return answer
        answer.name, answer.topic_id = record.name, record.topic_id
        answer.partitions = partitions_of(record, self.core)
        return answer


def partitions_of(record: TopicRecord, core: Core) -> list[MetadataResponsePartition]:
    """Every partition of a topic: this gateway leads it."""
    nodes = [core.node_id]
    return [
        MetadataResponsePartition(
            partition_index=index,
            leader_id=core.node_id,
            leader_epoch=core.leader_epoch,
            replica_nodes=nodes,
            isr_nodes=nodes,
        )
        for index in range(record.partitions)
    ]


HANDLERS: dict[ApiKey, type[Handler]] = {ApiKey.METADATA: MetadataHandler}
