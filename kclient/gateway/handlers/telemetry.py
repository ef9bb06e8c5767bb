"""GetTelemetrySubscriptions and PushTelemetry: the metrics that clients push (KIP-714)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, cast

import anyio

from kclient.errors import (
    CorruptRecordError,
    ErrorCode,
    InvalidRecordError,
    KafkaError,
    RecordTooLargeError,
    TelemetryTooLargeError,
)
from kclient.gateway.handlers._work import Work, started
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.telemetry.instances import ACCEPTED, ClientInstance, check_pushing_id
from kclient.gateway.telemetry.otlp import read_points
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from kclient.protocol.registry import ApiKey
from kclient.records import CompressionType
from kclient.records.compression import decompress

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.contexts import RequestContext
    from kclient.gateway.telemetry.clients import ClientTelemetry
    from kclient.gateway.workers import Workers

_AT_ONCE: Final = 4
"""Large pushes that are decompressed at a time, each up to telemetry.max.bytes."""
_USUAL: Final = 65_536
"""Bytes that most pushes have, decompressed: they count on their connections and wait for nobody's large ones."""
_SMALL: Final = 4_096
"""Bytes that a push may have without that its memory is asked for."""


class GetTelemetrySubscriptionsHandler(Handler):
    """Answers GetTelemetrySubscriptions.

    Args:
        telemetry: What is wanted of whom.
        max_bytes: What a client may push at a time: `telemetry.max.bytes`.
        clock: What time it is.
    """

    API: ClassVar[ApiKey] = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS
    VERSIONS: ClassVar[VersionRange] = (0, 0)

    def __init__(self, telemetry: ClientTelemetry, max_bytes: int, clock: Clock) -> None:
        self._telemetry = telemetry
        self._max_bytes = max_bytes
        self._clock = clock

    def begin(self, request: GetTelemetrySubscriptionsRequest, context: RequestContext) -> Begun:
        """What is wanted of the client, which gets an id if it has none."""
        return cast("Begun", started(self._begin(request, context)))

    def _begin(self, request: GetTelemetrySubscriptionsRequest, context: RequestContext) -> Work:
        now = self._clock.now()
        instance_id = self._telemetry.instances.id_of(request.client_instance_id)
        found: ClientInstance = yield from self._telemetry.heard(instance_id, context, now)
        found.ask(now)
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance_id,
            subscription_id=found.subscription_id,
            accepted_compression_types=list(ACCEPTED),
            push_interval_ms=found.wanted.interval_ms,
            telemetry_max_bytes=self._max_bytes,
            delta_temporality=True,
            requested_metrics=list(found.wanted.metrics),
        )


class PushTelemetryHandler(Handler):
    """Answers PushTelemetry.

    Args:
        telemetry: Takes what is pushed.
        max_bytes: What a client may push at a time, compressed and decompressed: `telemetry.max.bytes`.
        clock: What time it is.
        workers: Decompress it.
    """

    API: ClassVar[ApiKey] = ApiKey.PUSH_TELEMETRY
    VERSIONS: ClassVar[VersionRange] = (0, 0)

    def __init__(self, telemetry: ClientTelemetry, max_bytes: int, clock: Clock, workers: Workers) -> None:
        self._telemetry = telemetry
        self._max_bytes = max_bytes
        self._clock = clock
        self._workers = workers
        self._few = anyio.Semaphore(_AT_ONCE)

    def begin(self, request: PushTelemetryRequest, context: RequestContext) -> Begun:
        """Whether the client may push is decided at once; then the metrics are read."""
        return cast("Begun", started(self._begin(request, context)))

    def _begin(self, request: PushTelemetryRequest, context: RequestContext) -> Work:
        now, size = self._clock.now(), len(request.metrics)
        check_pushing_id(request.client_instance_id)
        found: ClientInstance = yield from self._telemetry.heard(request.client_instance_id, context, now)
        found.push(
            now, request.subscription_id, request.compression_type, size, self._max_bytes,
            terminating=request.terminating,
        )  # fmt: skip
        if not size or not self._telemetry.offered:  # as a broker of Kafka that has no plugin for them
            return PushTelemetryResponse()
        if request.compression_type != CompressionType.NONE:
            size += min(_USUAL, self._max_bytes)
        if size > _SMALL:
            yield size
        return partial(self._finish, bytes(request.metrics), CompressionType(request.compression_type), found, context)

    async def _finish(
        self, metrics: bytes, compression: CompressionType, found: ClientInstance, context: RequestContext
    ) -> PushTelemetryResponse:
        try:
            if compression is CompressionType.NONE:
                await self._take(metrics, found, context)
                return PushTelemetryResponse()
            usual = min(_USUAL, self._max_bytes)
            try:
                data = await self._decompressed(metrics, compression, usual)
            except RecordTooLargeError:
                if usual == self._max_bytes:
                    raise
            else:
                await self._take(data, found, context)
                return PushTelemetryResponse()
            async with self._few:
                await self._take(await self._decompressed(metrics, compression, self._max_bytes), found, context)
        except RecordTooLargeError as error:
            # Kafka 4.3 says INVALID_RECORD, at which clients give up for good; later releases say this.
            raise _told(found, TelemetryTooLargeError(str(error))) from error
        except CorruptRecordError as error:
            raise _told(found, InvalidRecordError(str(error))) from error
        return PushTelemetryResponse()

    async def _decompressed(self, metrics: bytes, compression: CompressionType, most: int) -> bytes | bytearray:
        return await self._workers.run(partial(decompress, compression, metrics, most)).wait()

    async def _take(self, data: bytes | bytearray, found: ClientInstance, context: RequestContext) -> None:
        pace = Pace(context.connection.flow)
        for _ in self._telemetry.pushed.take(
            found.instance_id, found.client, found.wanted.interval_ms, read_points(data), self._clock.now()
        ):
            if pace.over:
                await pace.pause()


def _told(found: ClientInstance, error: KafkaError) -> KafkaError:
    found.last_error = ErrorCode(error.code or 0)
    return error
