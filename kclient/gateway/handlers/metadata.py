"""Metadata: the gateway, its topics and their partitions; topics that are asked for are created if allowed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import ClassVar, cast

from kclient.acls import AclOperation, ResourceType
from kclient.errors import (
    ErrorCode,
    InvalidPartitionsError,
    InvalidTopicError,
    KafkaError,
    ThrottlingQuotaExceededError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.access import CLUSTER_NAME, Access
from kclient.gateway.config import Live
from kclient.gateway.contexts import ConnectionContext, RequestContext
from kclient.gateway.error_codes import code_of
from kclient.gateway.handlers._mutations import Mutations
from kclient.gateway.handlers._work import FEW, Work, started
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.leadership import Leadership
from kclient.gateway.topics.catalogue import TopicCatalogue
from kclient.gateway.topics.names import INTERNAL, check_name
from kclient.gateway.topics.record import TopicRecord
from kclient.net.fair_queue import Pace
from kclient.protocol.lazy_arrays import lazily
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

_BY_ID_SINCE = 12
_PER_NAME = 100
"""About how many bytes of memory the name of a topic takes that is to be created."""


class MetadataHandler(Handler):
    """Answers Metadata."""

    API: ClassVar[ApiKey] = ApiKey.METADATA
    VERSIONS: ClassVar[VersionRange] = (0, 13)

    def __init__(
        self,
        cluster_id: str,
        leadership: Leadership,
        access: Access,
        catalogue: TopicCatalogue,
        *,
        auto_create_topics: Live[bool],
        num_partitions: Live[int],
    ) -> None:
        self._cluster_id = cluster_id
        self._leadership = leadership
        self._access = access
        self._catalogue = catalogue
        self._auto_create_topics = auto_create_topics
        self._num_partitions = num_partitions

    def begin(self, request: MetadataRequest, context: RequestContext) -> Begun:
        """Answer at once what is known; creating topics takes longer."""
        return cast("Begun", started(self._begin(request, context)))

    def fail(self, request: MetadataRequest, context: RequestContext, error: KafkaError) -> MetadataResponse:
        """The same error for every topic; before v13 there is no place for one of the whole response."""
        return _refused(request.topics or [], code_of(error))

    def _begin(self, request: MetadataRequest, context: RequestContext) -> Work:
        access, client = self._access, context.connection
        if request.topics is None or (context.api_version == 0 and not request.topics):
            names = access.names(client, AclOperation.DESCRIBE)
            if len(names) > FEW or self._partitions(names, client) > FEW:
                yield None
            return self._respond(len(names), (MetadataRequestTopic(name=name) for name in names), request, context)
        missing: dict[str, None] = {}
        weight = counted = 0
        names_only = context.api_version < _BY_ID_SINCE
        for count, topic in enumerate(request.topics):
            if names_only and (topic.name is None or topic.topic_id != ZERO_UUID):
                return _refused(request.topics, ErrorCode.INVALID_REQUEST)  # as Kafka
            record = None if topic.name is None else self._found(client, topic.name)
            if record is not None:
                weight += record.partitions
            elif topic.name is not None and self._may_create(request, topic.name, client):
                missing[topic.name] = None
            if count % FEW == FEW - 1:
                yield _PER_NAME * (len(missing) - counted)
                counted = len(missing)
        if missing:
            return partial(self._create, list(missing), request, context)
        if weight > FEW:
            yield None
        return self._respond(len(request.topics), request.topics, request, context)

    def _partitions(self, names: list[str], client: ConnectionContext) -> int:
        found = (self._found(client, name) for name in names)
        return sum(record.partitions for record in found if record is not None)

    def _found(self, client: ConnectionContext, name: str) -> TopicRecord | None:
        access, operation = self._access, AclOperation.DESCRIBE
        return access.find(client, operation, name, None) or access.internal(client, operation, name)

    def _may_create(self, request: MetadataRequest, name: str, client: ConnectionContext) -> bool:
        if not self._creates(request, name):
            return False
        try:
            check_name(name)
        except InvalidTopicError:
            return False
        access = self._access
        return access.allows(client, AclOperation.DESCRIBE, ResourceType.TOPIC, name) and self._allows(client, name)

    def _creates(self, request: MetadataRequest, name: str) -> bool:
        """Whether topics of this name are created where there is none."""
        creates = request.allow_auto_topic_creation and self._auto_create_topics()
        return creates and name not in INTERNAL

    def _allows(self, client: ConnectionContext, name: str) -> bool:
        """Whether this client may have it created."""
        access = self._access
        return access.allows(client, AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME) or access.allows(
            client, AclOperation.CREATE, ResourceType.TOPIC, name
        )

    async def _create(self, missing: list[str], request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        pace, mutations = Pace(context.connection.flow), Mutations(context, strict_since=0, waits=False)
        refused: dict[str, KafkaError] = {}
        for name in missing:
            await pace.pause()
            try:
                mutations.add(self._num_partitions())
                await self._catalogue.create(name, patience=0)  # the other topics of the request wait with this one
            except TopicExistsError:  # another request was faster
                pass
            except ThrottlingQuotaExceededError:  # its client tries again
                pass
            except KafkaError as error:
                logger.error("topic %s could not be created: %s", name, error)
                if isinstance(error, InvalidPartitionsError):  # nothing comes of trying again, which others invite to
                    refused[name] = error
        wanted = request.topics or []
        return self._respond(len(wanted), wanted, request, context, refused)

    def _respond(
        self,
        count: int,
        wanted: Iterable[MetadataRequestTopic],
        request: MetadataRequest,
        context: RequestContext,
        refused: Mapping[str, KafkaError] = MappingProxyType({}),
    ) -> MetadataResponse:
        nodes = self._leadership.nodes(context.connection.advertised)
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(**node._asdict()) for node in nodes],
            cluster_id=self._cluster_id,
            controller_id=self._leadership.controller_id,
            topics=lazily(count, (self._topic(topic, request, context, refused) for topic in wanted)),
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = self._access.cluster_operations(context.connection)
        return response

    def _topic(
        self,
        wanted: MetadataRequestTopic,
        request: MetadataRequest,
        context: RequestContext,
        refused: Mapping[str, KafkaError],
    ) -> MetadataResponseTopic:
        access, client, version = self._access, context.connection, context.api_version
        answer = MetadataResponseTopic(name=wanted.name, is_internal=wanted.name in INTERNAL)
        try:
            if wanted.name is not None:
                check_name(wanted.name)
                try:
                    record = access.described(client, AclOperation.DESCRIBE, wanted.name)
                except UnknownTopicOrPartitionError:
                    if wanted.name in refused:
                        raise refused[wanted.name] from None
                    if self._creates(request, wanted.name) and not self._allows(client, wanted.name):
                        access.check(client, AclOperation.CREATE, ResourceType.TOPIC, wanted.name)
                    raise
            elif version >= _BY_ID_SINCE and wanted.topic_id != ZERO_UUID:
                answer.topic_id = wanted.topic_id
                record = access.described(client, AclOperation.DESCRIBE, "", wanted.topic_id)
            else:
                raise InvalidTopicError("a topic without a name")
            if request.include_topic_authorized_operations:
                answer.topic_authorized_operations = access.operations(client, ResourceType.TOPIC, record.name)
        except KafkaError as error:
            answer.error_code = code_of(error)
            if request.include_topic_authorized_operations and isinstance(error, UnknownTopicOrPartitionError):
                with suppress(KafkaError):  # of a topic that is not there, too
                    answer.topic_authorized_operations = access.operations(
                        client, ResourceType.TOPIC, wanted.name or ""
                    )
            return answer
        answer.name, answer.topic_id, answer.is_internal = record.name, record.topic_id, record.name in INTERNAL
        answer.partitions = _partitions_of(record, self._leadership)
        return answer


def _refused(topics: list[MetadataRequestTopic], code: int) -> MetadataResponse:
    """The answer to a request that is refused as a whole."""
    rows = (MetadataResponseTopic(name=topic.name or "", topic_id=topic.topic_id, error_code=code) for topic in topics)
    return MetadataResponse(error_code=code, topics=lazily(len(topics), rows))


def _partitions_of(record: TopicRecord, leadership: Leadership) -> list[MetadataResponsePartition]:
    """Every partition of a topic, with its leader as its only replica."""
    return lazily(record.partitions, _rows(record, leadership))


def _rows(record: TopicRecord, leadership: Leadership) -> Iterator[MetadataResponsePartition]:
    for index in range(record.partitions):
        node_id, epoch = leadership.leader(record, index)
        nodes = [node_id]
        yield MetadataResponsePartition(
            partition_index=index, leader_id=node_id, leader_epoch=epoch, replica_nodes=nodes, isr_nodes=nodes
        )
