"""What a gateway tells of itself: each metric, and where it is found out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import TYPE_CHECKING, Final

from kclient.gateway.metrics import MetricRegistry

if TYPE_CHECKING:
    from kclient.gateway.compaction import LogCleaner
    from kclient.gateway.quotas.charges import Throttles
    from kclient.gateway.telemetry import ClientTelemetry
    from kclient.gateway.topics.table import TopicTable
    from kclient.gateway.virtual import SharedStore
    from kclient.htp.port import DiskSpace
    from kclient.memory_ledger import MemoryPart

_PREFIX: Final = "kclient_gateway_"


def gateway_metrics(
    *,
    topics: TopicTable,
    groups: Sized,
    shared: SharedStore,
    memory: MemoryPart,
    connections: Callable[[], int],
    requests: Callable[[], int],
    space: Callable[[], DiskSpace] | None,
    cleaner: LogCleaner,
    telemetry: ClientTelemetry,
    throttles: Throttles,
    meters: Sized,
    muted: Callable[[], int],
) -> MetricRegistry:
    """The metrics of a gateway.

    Args:
        topics: Those that it serves.
        groups: All groups.
        shared: Has the topics of HTP that partitions share.
        memory: What it holds.
        connections: How many clients are connected.
        requests: How many requests have come.
        space: Asks the store about its disk; None where it has none.
        cleaner: Compacts logs.
        telemetry: The metrics that clients push.
        throttles: How often, and how long, clients were throttled.
        meters: Of those that quotas hold for, what they have used.
        muted: How many connections are not read because of that.
    """
    registry = MetricRegistry()
    gauge = registry.gauge
    gauge(f"{_PREFIX}topics", "Topics that are served.", lambda: len(topics))
    gauge(f"{_PREFIX}partitions", "Partitions of these topics.", lambda: sum(each.partitions for each in topics))
    gauge(f"{_PREFIX}groups", "Groups with members or committed offsets.", lambda: len(groups))
    gauge(f"{_PREFIX}connections", "Clients that are connected.", connections)
    registry.counter(f"{_PREFIX}requests_total", "Requests that have come since the start.", requests)
    gauge(
        f"{_PREFIX}memory_held_bytes",
        "Memory that is kept, by what it is for, as connections.max.memory.bytes counts it.",
        lambda: (((name,), held) for name, held in memory.held().items()),
        unit="bytes", labels=("purpose",),
    )  # fmt: skip
    gauge(
        f"{_PREFIX}memory_limit_bytes",
        "What all of that may come to: connections.max.memory.bytes.",
        lambda: memory.total,
        unit="bytes",
    )
    if space is not None:
        _disk(registry, space)
    gauge(
        f"{_PREFIX}shared_topic_retained_bytes",
        "Bytes in a topic of the mapping virtual that no partition keeps any more, and that stay because messages "
        "before them do: space is freed only below the slowest partition.",
        lambda: (((name,), standing.retained) for name, standing in shared.standings()),
        unit="bytes", labels=("topic",),
    )  # fmt: skip
    gauge(
        f"{_PREFIX}shared_topic_slowest_partition",
        "The partition that keeps the oldest message of a topic of the mapping virtual.",
        lambda: _slowest(shared),
        labels=("topic",),
    )
    _compaction(registry, cleaner)
    _telemetry(registry, telemetry)
    _quotas(registry, throttles, meters, muted)
    return registry


def _quotas(registry: MetricRegistry, throttles: Throttles, meters: Sized, muted: Callable[[], int]) -> None:
    registry.counter(
        f"{_PREFIX}throttled_total",
        "Requests, and connections, that exceeded a quota since the start, by the name of the quota.",
        lambda: (((kind.value,), count) for kind, count in throttles.count.items()),
        labels=("quota",),
    )
    registry.counter(
        f"{_PREFIX}throttle_seconds_total",
        "How long their clients were told to wait for that.",
        lambda: (((kind.value,), seconds) for kind, seconds in throttles.seconds.items()),
        labels=("quota",),
    )
    registry.gauge(f"{_PREFIX}throttled_connections", "Connections that are not read at present for that.", muted)
    registry.gauge(
        f"{_PREFIX}quota_meters",
        "Quotas of clients, or groups of clients, of which it is known what was used of them lately.",
        lambda: len(meters),
    )


def _compaction(registry: MetricRegistry, cleaner: LogCleaner) -> None:
    registry.counter(f"{_PREFIX}log_cleaner_runs_total", "Compactions of logs since the start.", lambda: cleaner.runs)
    registry.counter(
        f"{_PREFIX}log_cleaner_read_bytes_total",
        "Bytes of logs that these have read, to find out what of them stays.",
        lambda: cleaner.read_bytes,
    )
    registry.counter(
        f"{_PREFIX}log_cleaner_kept_bytes_total",
        "Bytes of those that were kept.",
        lambda: cleaner.kept_bytes,
    )
    registry.gauge(
        f"{_PREFIX}log_cleaner_uncleanable_partitions",
        "Partitions that are not compacted until the next start, because their logs are damaged.",
        lambda: cleaner.uncleanable,
    )


def _telemetry(registry: MetricRegistry, telemetry: ClientTelemetry) -> None:
    pushed = telemetry.pushed
    registry.gauge(
        f"{_PREFIX}telemetry_clients",
        "Clients that were heard of lately because they push metrics, or ask which are wanted.",
        lambda: len(telemetry.instances),
    )
    registry.gauge(
        f"{_PREFIX}telemetry_series",
        "Values of metrics that clients have pushed, of which telemetry.max.series are kept at most.",
        lambda: pushed.series,
    )
    registry.counter(
        f"{_PREFIX}telemetry_pushes_total", "Pushes of metrics taken since the start.", lambda: pushed.pushes
    )
    registry.counter(
        f"{_PREFIX}telemetry_left_out_total",
        "Pushed values that were not kept, by why.",
        lambda: (((why,), count) for why, count in pushed.left_out.items()),
        labels=("reason",),
    )


def _disk(registry: MetricRegistry, space: Callable[[], DiskSpace]) -> None:
    registry.gauge(
        f"{_PREFIX}disk_free_bytes",
        "Space left on the file system of the data directory.",
        lambda: space().free,
        unit="bytes",
    )
    registry.gauge(
        f"{_PREFIX}disk_low_watermark_bytes",
        "With less space than this left, messages are refused (log.dir.min.free.bytes); 0 for never.",
        lambda: space().least,
        unit="bytes",
    )
    registry.gauge(
        f"{_PREFIX}disk_appends_refused",
        "1 while messages are refused because the space left is below the low watermark, else 0.",
        lambda: int(space().refused),
    )


def _slowest(shared: SharedStore) -> Iterator[tuple[tuple[str], int]]:
    for name, standing in shared.standings():
        if standing.slowest is not None:
            yield (name,), standing.slowest
