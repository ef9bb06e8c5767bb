"""How a gateway comes to its parts, and to a server in front of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kclient.gateway.assembly import Assembly, assemble
from kclient.gateway.connection_quota import LimitSettings, QuotaKeeper, connection_quota
from kclient.gateway.handlers.log_dirs import log_dir_of
from kclient.gateway.identity import Identity, cluster_id_of
from kclient.gateway.leadership import AssignedLeadership
from kclient.gateway.local import store_of
from kclient.gateway.membership import ClusterView
from kclient.gateway.topics.internal import internal_topics
from kclient.gateway.unit_epochs import UnitEpochs
from kclient.net.server import Server, ServerSettings

if TYPE_CHECKING:
    from kclient.concurrency import Supervisor, TaskHandle
    from kclient.gateway.config import BrokerConfig
    from kclient.gateway.local import Presence
    from kclient.gateway.mapping import Mapping as TopicMapping
    from kclient.gateway.participation import Participation
    from kclient.gateway.security.acl_authorizer import AclAuthorizer
    from kclient.gateway.security.delegation_tokens import TokenSettings
    from kclient.htp.port import Store
    from kclient.memory_ledger import MemoryPart
    from kclient.net.connection_limits import ConnectionQuota


class StartSettings(NamedTuple):
    """How a gateway is to be, as its settings say."""

    config: BrokerConfig
    mapping: TopicMapping
    """Where the partitions of new topics lie."""
    htp: str
    """The name of the store, for people."""
    authorizer: AclAuthorizer | None
    token_settings: TokenSettings | None
    listener_rates: Mapping[str, int]
    """The connections in a second of those listeners that have a rate of their own."""

    @property
    def rack(self) -> str | None:
        """Where it stands."""
        rack = self.config.get("broker.rack")
        return None if rack is None else str(rack)


async def take_part(
    wanted: StartSettings,
    store: Store,
    part: Participation,
    presence: Presence | None,
    memory: Callable[[], MemoryPart],
    supervisor: Supervisor,
    spawn_renewal: Callable[..., TaskHandle],
) -> Assembly:
    """Become one of the gateways that serve a store; returns what this one is made of.

    Args:
        wanted: Its settings.
        store: The store, which is open.
        part: In serving it; whatever was taken is given back by who calls.
        presence: Where clients of this machine find it; None where they do not.
        memory: Begins to count what it holds, when it has come to serve.
        supervisor: Runs its tasks.
        spawn_renewal: Runs the one that renews its lease.

    Raises:
        HtpError: The store cannot be read, or the lease is another's.
    """
    config, manager = wanted.config, store.manager
    cluster_id = await cluster_id_of(manager)
    node_id = config.get_int("node.id")
    if node_id < 0:
        node_id = await part.allot()
        config.allotted(node_id)
    if presence is not None:
        presence.claim(node_id if part.shared else None)
    held, generations = await part.take(node_id, spawn_renewal)
    identity = Identity(node_id, cluster_id, generations.current.newest.number, part.run)
    epochs = UnitEpochs(manager, held, generations)
    await epochs.load()
    cluster = ClusterView(manager, node_id, part.looks, lease=part.registered)
    internal = await internal_topics(config, manager, cluster_id)
    leadership = AssignedLeadership(identity, wanted.rack, generations, epochs, cluster, internal)
    address = None if presence is None else store_of(presence.address)
    return await assemble(
        config, wanted.mapping, manager, store.broker, held, identity, generations, epochs, leadership, cluster,
        internal.values(), log_dir_of(wanted.htp), memory(), supervisor, address=address,
        authorizer=wanted.authorizer, token_settings=wanted.token_settings, listener_rates=wanted.listener_rates,
    )  # fmt: skip


async def make_server(parts: Assembly, memory: MemoryPart, supervisor: Supervisor) -> Server:
    """A server in front of these parts, which does not listen yet, and whose limits follow the settings."""
    limits = partial(LimitSettings.of, parts.config)
    wanted = limits()
    found = await connection_quota(wanted)
    found.check(parts.config.dynamic)  # what was changed while a gateway ran stops no start
    settings = _server_settings(parts.config, found.quota)
    server = Server(parts.requests, supervisor, settings, queue=parts.queue, memory=memory)
    server.on_memory_short = parts.requests.memory_short
    server.arrivals = parts.arrivals

    def apply(quota: ConnectionQuota) -> None:
        server.limits.quota = quota

    keeper = QuotaKeeper(wanted, limits=limits, apply=apply, spawn=supervisor.spawn)
    keeper.complete(found)
    parts.dynamic.on_change(keeper.settings_changed)
    return server


def _server_settings(config: BrokerConfig, quota: ConnectionQuota) -> ServerSettings:
    idle_ms = config.get_int("connections.max.idle.ms")
    request_bytes = config.get_int("queued.max.request.bytes")
    return ServerSettings(
        frame_limit=config.get_int("socket.request.max.bytes"),
        max_outstanding=config.get_int("queued.max.requests"),
        max_memory=config.get_int("connections.max.memory.bytes"),
        max_request_memory=None if request_bytes < 0 else request_bytes,
        quota=quota,
        idle_timeout=idle_ms / 1000 if idle_ms > 0 else None,
    )


def run_background(parts: Assembly, supervisor: Supervisor) -> list[TaskHandle]:
    """Begin what the parts do of their own accord; the tasks use partitions."""
    running: list[tuple[Callable[[], Awaitable[object]], str]] = [
        (parts.retention.run, "retention"),
        (parts.cleaner.run, "log cleaner"),
        (parts.opener.run, "open partitions"),
        (parts.shares.run, "locks of share groups"),
        (parts.feed.run, "follow changes"),
        (parts.rights_feed.run, "follow changes of rights"),
        (parts.cluster.watch, "watch other gateways"),
    ]
    if parts.delegation_tokens is not None:
        running.append((parts.delegation_tokens.run, "ends of tokens"))
    return [supervisor.spawn(run, name=name) for run, name in running]
