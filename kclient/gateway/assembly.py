"""What a running gateway is made of, and in which order: the one place that knows all parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from kclient.concurrency import Supervisor, loop_soon
from kclient.gateway.access import Access
from kclient.gateway.append_memory import AppendMemory
from kclient.gateway.change_feed import ChangeFeed
from kclient.gateway.clock import Clock
from kclient.gateway.cluster_generations import ClusterGenerations
from kclient.gateway.compaction import LogCleaner
from kclient.gateway.config import BrokerConfig, TopicConfig
from kclient.gateway.coordination import CoordinatorType
from kclient.gateway.dynamic_config import DynamicConfig
from kclient.gateway.extents import partition_store
from kclient.gateway.feature_levels import FeatureLevels
from kclient.gateway.features import SUPPORTED, Features
from kclient.gateway.fenced_writer import FencedWriter
from kclient.gateway.groups import GroupCoordinator, group_settings
from kclient.gateway.groups.configs import GroupConfigs
from kclient.gateway.groups.moving import CoordinatorClaims
from kclient.gateway.groups.sharing.administration import ShareGroupAdministration
from kclient.gateway.groups.streaming.creating import StreamsTopics
from kclient.gateway.handing_over import HandOver
from kclient.gateway.handlers._shares import ShareRequests
from kclient.gateway.handlers.acls import CreateAclsHandler, DeleteAclsHandler, DescribeAclsHandler
from kclient.gateway.handlers.cluster import DescribeClusterHandler, DescribeTopicPartitionsHandler
from kclient.gateway.handlers.config_resources import ListConfigResourcesHandler
from kclient.gateway.handlers.configs import AlterConfigsHandler, DescribeConfigsHandler, IncrementalAlterConfigsHandler
from kclient.gateway.handlers.delegation_tokens import (
    CreateDelegationTokenHandler,
    DescribeDelegationTokenHandler,
    ExpireDelegationTokenHandler,
    RenewDelegationTokenHandler,
)
from kclient.gateway.handlers.features import UpdateFeaturesHandler
from kclient.gateway.handlers.fetch import FetchHandler
from kclient.gateway.handlers.fetch_reading import FetchReader
from kclient.gateway.handlers.list_offsets import DeleteRecordsHandler, ListOffsetsHandler, OffsetForLeaderEpochHandler
from kclient.gateway.handlers.log_dirs import AlterReplicaLogDirsHandler, DescribeLogDirsHandler
from kclient.gateway.handlers.metadata import MetadataHandler
from kclient.gateway.handlers.produce import ProduceHandler
from kclient.gateway.handlers.producer_ids import InitProducerIdHandler
from kclient.gateway.handlers.producers import DescribeProducersHandler
from kclient.gateway.handlers.quotas import AlterClientQuotasHandler, DescribeClientQuotasHandler
from kclient.gateway.handlers.reassignments import (
    AlterPartitionReassignmentsHandler,
    ElectLeadersHandler,
    ListPartitionReassignmentsHandler,
)
from kclient.gateway.handlers.scram_users import AlterUserScramCredentialsHandler, DescribeUserScramCredentialsHandler
from kclient.gateway.handlers.share_acknowledge import ShareAcknowledgeHandler
from kclient.gateway.handlers.share_fetch import ShareFetchHandler
from kclient.gateway.handlers.table import HandlerTable
from kclient.gateway.handlers.telemetry import GetTelemetrySubscriptionsHandler, PushTelemetryHandler
from kclient.gateway.handlers.topics import CreatePartitionsHandler, CreateTopicsHandler, DeleteTopicsHandler
from kclient.gateway.handlers_of_groups import (
    group_handlers,
    share_group_handlers,
    streams_group_handlers,
    transaction_handlers,
)
from kclient.gateway.identity import Identity
from kclient.gateway.leadership import Leadership
from kclient.gateway.living_topics import LivingTopics
from kclient.gateway.mapping import Mapping as TopicMapping
from kclient.gateway.membership import ClusterView, living_runs
from kclient.gateway.moves_by_hand import MovesByHand
from kclient.gateway.opening_ahead import Opener
from kclient.gateway.ownership import HeldLease
from kclient.gateway.partition_stores import PartitionStores, shared_store
from kclient.gateway.partitions import PartitionTable
from kclient.gateway.peer_calls.names import is_gateway
from kclient.gateway.peer_calls.routing import ClusterPeers
from kclient.gateway.peers import LocalPeers
from kclient.gateway.producer_ids import ProducerIds
from kclient.gateway.producer_windows import ProducerLimit
from kclient.gateway.quota_entries import QuotaEntries
from kclient.gateway.quotas.addresses import AddressLimits
from kclient.gateway.quotas.arrivals import Arrivals
from kclient.gateway.quotas.charges import Throttles
from kclient.gateway.quotas.clients import ClientQuotas
from kclient.gateway.quotas.rates import RateWindow
from kclient.gateway.releases import Releases
from kclient.gateway.request_quotas import RequestQuotas
from kclient.gateway.retention import Retention
from kclient.gateway.search import TimestampSearch
from kclient.gateway.security.acl_authorizer import AclAuthorizer
from kclient.gateway.security.acls import Acls
from kclient.gateway.security.audit import AclAudit
from kclient.gateway.security.delegation_tokens import DelegationTokens, TokenSettings
from kclient.gateway.security.scram_users import ScramUsers
from kclient.gateway.server import RequestServer
from kclient.gateway.settings_of_quotas import MAX_CREATION_RATE, MUTATION_WINDOW, QUOTA_WINDOW
from kclient.gateway.shares.offsets import ShareGroupOffsets
from kclient.gateway.shares.sessions import MemberSessions
from kclient.gateway.shares.table import ShareTable
from kclient.gateway.shields import Shields
from kclient.gateway.standing import ClusterStanding
from kclient.gateway.telemetry import ClientInstances, ClientMetricsConfigs, ClientTelemetry, PushedMetrics
from kclient.gateway.topics.catalogue import TopicCatalogue
from kclient.gateway.topics.followed import FollowedTopics
from kclient.gateway.topics.internal import InternalTopic, internal_records
from kclient.gateway.topics.table import TopicTable
from kclient.gateway.transactions.coordinator import TransactionCoordinator
from kclient.gateway.transactions.settings import transaction_settings
from kclient.gateway.unit_epochs import UnitEpochs
from kclient.gateway.virtual import SharedStore
from kclient.gateway.workers import Workers
from kclient.htp.port import CAP_SHARED, Broker, Manager
from kclient.memory_ledger import MemoryPart
from kclient.net.address import Address
from kclient.net.fair_queue import FairQueue

_TOPICS_SHARE, _APPENDS_SHARE, _BATCHES_SHARE = 4, 8, 8
"""One part in so many of the memory may be taken by topics, by appends that wait for syncs, and by batches that are not
stored and nobody waits for."""
_USERS_SHARE: Final = 32
"""And by the users who log in, and by delegation tokens."""
_ACLS_SHARE: Final = 4
"""And by the entries of access control lists: a default total has room for some 100,000."""
_SETTINGS_SHARE: Final = 32
"""And by settings of groups, and subscriptions to metrics of clients."""
_TELEMETRY_SHARE: Final = 16
"""And by these metrics."""
_QUOTAS_SHARE: Final = 64
"""And by the quotas of clients; as much by what is known of what these have used, and of addresses: else many of one
undo the others."""
_SHARES_SHARE: Final = 8
"""And by what share groups read, and by the sessions of their members."""


@dataclass(slots=True, frozen=True)
class Assembly:
    """The parts of one gateway. Only the gateway holds them together: none of them knows this."""

    config: BrokerConfig
    manager: Manager
    broker: Broker
    lease: HeldLease
    identity: Identity
    clock: Clock
    queue: FairQueue
    """Who may use the event loop: each connection has a flow in it, and what is done for many of them has one too."""
    workers: Workers
    """Threads for checksums, decompression and compression."""
    shields: Shields
    """What goes on although its request is cancelled."""
    dynamic: DynamicConfig
    """What of `config` was changed since the start."""
    features: FeatureLevels
    """Which levels of features are in use."""
    scram_users: ScramUsers
    """Who can log in by SCRAM."""
    delegation_tokens: DelegationTokens | None
    """With which clients log in as their owners; None where there are none."""
    acls: Acls | None
    """Who may do what; None where everybody may do everything."""
    quotas: QuotaEntries
    """What clients may use."""
    charged: RequestQuotas
    """What they have."""
    arrivals: Arrivals
    """How fast they may connect."""
    topics: TopicTable
    access: Access
    """Who finds what, and may do it."""
    catalogue: TopicCatalogue
    partitions: PartitionTable
    shared: SharedStore
    """The topics of HTP that partitions share."""
    group_configs: GroupConfigs
    """Settings of single groups."""
    telemetry: ClientTelemetry
    """The metrics of clients."""
    groups: GroupCoordinator
    shares: ShareTable
    """What share groups read of the partitions that it leads."""
    share_offsets: ShareGroupOffsets
    """Where share groups begin to read, for administrators."""
    transactions: TransactionCoordinator
    peers: ClusterPeers
    producer_ids: ProducerIds
    retention: Retention
    cleaner: LogCleaner
    opener: Opener
    generations: ClusterGenerations
    """Which gateways serve the store, from when on: who leads what follows from them."""
    leadership: Leadership
    hand_over: HandOver
    """Of what others lead by now."""
    cluster: ClusterView
    """The other gateways."""
    feed: ChangeFeed
    """What they change."""
    rights_feed: ChangeFeed
    """Who may log in, and do what: it does not wait until very many topics are taken over."""
    table: HandlerTable
    requests: RequestServer

    async def load(self) -> None:
        """Read what is stored, and finish what the last run left half done."""
        await self.feed.begin()
        await self.rights_feed.begin()
        await self.cluster.read_all()
        await self.generations.read_all()
        await self.dynamic.read_all()  # what has changed since they were read first
        await self.features.load()
        await self.scram_users.read_all()
        if self.delegation_tokens is not None:
            await self.delegation_tokens.read_all()
        if self.acls is not None:
            await self.acls.load()
        await self.quotas.read_all()
        await self.group_configs.read_all()
        await self.telemetry.configs.read_all()
        await self.catalogue.load()
        if self.generations.alone:  # else others write checkpoints after they were read
            self.generations.on_change(self.partitions.forget_ahead)
            await self.partitions.load()
        await self.groups.start()
        await self.transactions.start(self.peers)
        await self.catalogue.sweep()


async def assemble(
    config: BrokerConfig,
    mapping: TopicMapping,
    manager: Manager,
    broker: Broker,
    lease: HeldLease,
    identity: Identity,
    generations: ClusterGenerations,
    epochs: UnitEpochs,
    leadership: Leadership,
    cluster: ClusterView,
    internal: Iterable[InternalTopic],
    log_dir: str,
    memory: MemoryPart,
    supervisor: Supervisor,
    *,
    address: Address | None,
    authorizer: AclAuthorizer | None = None,
    token_settings: TokenSettings | None = None,
    listener_rates: Mapping[str, int] = MappingProxyType({}),
) -> Assembly:
    """Make the parts of a gateway, with the settings in force that were changed while one ran.

    Args:
        config: The broker's settings as they were given.
        mapping: Where the partitions of new topics lie.
        manager: Keeps rows.
        broker: Keeps messages.
        lease: Under which the gateway serves the store.
        identity: Who it is.
        generations: Of gateways that serve the store.
        epochs: Of units that have one of their own.
        leadership: What it leads.
        cluster: The other gateways.
        internal: Kafka's own topics.
        log_dir: What clients are told of where the store is.
        memory: What it holds.
        supervisor: Runs its tasks: the failure of one is its failure; expected errors are handled inside.
        address: Under which clients name the store instead of a host; None if they cannot.
        authorizer: Decides who may do what, by the entries that it is given here; None where nobody does.
        token_settings: Of delegation tokens; None where there are none.
        listener_rates: The connections in a second of those listeners that have a rate of their own.

    Raises:
        HtpError: The settings that were changed cannot be read from the store.
    """
    spawn = supervisor.spawn
    clock, shields, workers, queue = Clock(), Shields(), Workers(), FairQueue(loop_soon())
    producers = ProducerLimit(config.get_int("producer.id.cache.size"), memory.account("producers"))
    appends = AppendMemory(memory.limited("appends", _APPENDS_SHARE))
    batches = memory.limited("batches", _BATCHES_SHARE)
    dynamic = DynamicConfig(config, manager, lease, shields)
    await dynamic.load()

    def unreadable() -> bool:
        return dynamic.unreadable

    topics = TopicTable(memory.limited("topics", _TOPICS_SHARE), internal_records(internal, config))
    claims = partial(CoordinatorClaims, leadership, generations)
    settings_memory = memory.limited("settings", _SETTINGS_SHARE)
    group_configs = GroupConfigs(config, manager, lease, shields, settings_memory)
    groups = GroupCoordinator(
        topics, partial(group_settings, config), leadership,
        unreadable=unreadable, manager=manager, lease=lease, identity=identity, queue=queue, clock=clock, memory=memory,
        spawn=spawn, workers=workers, overrides=group_configs.apply_to, claims=claims(CoordinatorType.GROUP),
    )  # fmt: skip
    replication_factor = config.live_int("default.replication.factor")
    catalogue = TopicCatalogue(
        topics, groups.committed, leadership, mapping,
        manager=manager, broker=broker, lease=lease, run=identity.run, shields=shields, spawn=spawn, flow=queue.flow(),
        resolve=partial(TopicConfig.resolve, config),
        num_partitions=config.live_int("num.partitions"), replication_factor=replication_factor,
        living=partial(living_runs, manager) if CAP_SHARED in broker.capabilities else None,
    )  # fmt: skip
    living = LivingTopics(manager, topics.by_id, generations)
    writer = FencedWriter(manager, lease, generations, living)
    share_offsets = ShareGroupOffsets(manager, lease, claims(CoordinatorType.GROUP), living)
    share_admin = ShareGroupAdministration(groups.table, groups.sharing, groups.deletion, share_offsets)
    releases = Releases(manager, lease, generations)
    shared = shared_store(manager, broker, lease, writer, memory, clock.wall_ms, spawn, clock.now)
    store = PartitionStores(partition_store(manager, broker, lease, clock.wall_ms, clock.now), shared)
    search = TimestampSearch(store.capabilities, workers)
    partitions = PartitionTable(
        topics,
        manager=manager, writer=writer, store=store, leadership=leadership, releases=releases, clock=clock,
        producers=producers, memory=memory, appends=appends, shields=shields, spawn=spawn,
    )  # fmt: skip
    retention = Retention(
        topics, partitions, clock,
        check_interval_ms=config.live_int("log.retention.check.interval.ms"),
        producer_id_expiration_ms=config.live_int("producer.id.expiration.ms"),
        unreadable=unreadable, spawn=spawn,
    )  # fmt: skip
    cleaner = LogCleaner(
        topics, partitions, clock, workers, memory.account("log cleaner"),
        enabled=config.get_bool("log.cleaner.enable"),
        backoff_ms=config.live_int("log.cleaner.backoff.ms"),
        table_bytes=config.live_int("log.cleaner.dedupe.buffer.size"),
        bytes_per_second=config.live_float("log.cleaner.io.max.bytes.per.second"),
        unreadable=unreadable,
    )  # fmt: skip
    dynamic.on_change(groups.reconfigure)
    group_configs.on_change(groups.table.reconfigure_group)
    dynamic.on_change(retention.reconfigure)
    dynamic.on_change(cleaner.reconfigure)
    dynamic.hold_for(catalogue.resolve_all)
    access = Access(topics, leadership, is_loaded=groups.moves.ready)
    acls: Acls | None = None
    if authorizer is not None:
        access.guard(authorizer, AclAudit(authorizer), lambda: authorizer.changes)
        acls = Acls(authorizer, manager, lease, shields, memory.limited("acls", _ACLS_SHARE), queue.flow())
    moves = MovesByHand(generations, lease, topics, leadership)
    standing = ClusterStanding(lease, generations, partitions, clock)
    producer_ids = ProducerIds(manager, lease, identity.leader_epoch, producers)
    transactions = TransactionCoordinator(
        partial(transaction_settings, config), leadership,
        manager=manager, lease=lease, claims=claims(CoordinatorType.TRANSACTION), producer_ids=producer_ids,
        shields=shields, flow=queue.flow(), clock=clock, memory=memory.account("transactions"), spawn=spawn,
    )  # fmt: skip
    dynamic.on_change(transactions.reconfigure)
    local = LocalPeers(topics, partitions, transactions, groups.transactional.decided, queue.flow())
    peers = ClusterPeers(
        local, identity, topics, leadership, generations, cluster, store=address, supervisor=supervisor
    )
    from_gateway = partial(is_gateway, gateways=cluster)
    features = Features(SUPPORTED, epoch=0)
    sessions = MemberSessions(config.live_int("group.share.max.share.sessions"), memory.total // _SHARES_SHARE)
    shares = ShareTable(
        partitions, leadership,
        manager=manager, writer=writer, settings=group_configs.delivery, find_by_time=search.find,
        is_read=sessions.has_any, clock=clock, shields=shields, memory=memory.limited("share groups", _SHARES_SHARE),
        spawn=spawn,
    )  # fmt: skip
    share_requests = ShareRequests(access, partitions, leadership, shares, sessions, clock, features)
    reader = FetchReader(access, partitions, leadership, memory.total, config.live_int("fetch.max.bytes"), spawn)
    scram_users = ScramUsers(manager, lease, shields, memory.limited("users", _USERS_SHARE))
    pushed = memory.limited("metrics of clients", _TELEMETRY_SHARE)
    telemetry = ClientTelemetry(
        ClientMetricsConfigs(manager, lease, shields, settings_memory, workers),
        ClientInstances(pushed),
        PushedMetrics(config.live_int("telemetry.max.series"), pushed),
    )
    tokens: DelegationTokens | None = None
    if token_settings is not None:
        tokens = DelegationTokens(
            token_settings, manager, lease, shields, memory.limited("delegation tokens", _USERS_SHARE),
            workers, queue.flow(), clock.wall_ms,
        )  # fmt: skip
    meters = memory.limited("quota meters", _QUOTAS_SHARE)
    client_quotas = ClientQuotas(_window(config, QUOTA_WINDOW), _window(config, MUTATION_WINDOW), meters)
    throttles = Throttles()
    arrivals = Arrivals(
        client_quotas.window,
        config.live_int(MAX_CREATION_RATE),
        listener_rates,
        clock.now,
        throttles,
        memory.limited("connection rates", _QUOTAS_SHARE),
    )
    limits = AddressLimits(arrivals, spawn)
    quotas = QuotaEntries(
        client_quotas, limits, manager, lease, shields, memory.limited("quotas", _QUOTAS_SHARE), queue.flow()
    )
    charged = RequestQuotas(client_quotas, throttles, clock.now, from_gateway)
    levels = FeatureLevels(features, manager, lease, cluster, shields)
    table = HandlerTable(
        [
            ProduceHandler(access, partitions, leadership, workers, clock, peers, appends, batches, spawn),
            FetchHandler(
                access,
                partitions,
                leadership,
                memory=memory.total,
                max_bytes=config.live_int("fetch.max.bytes"),
                session_slots=config.get_int("max.incremental.fetch.session.cache.slots"),
                workers=workers,
                clock=clock,
                shields=shields,
                flow=queue.flow(),
                spawn=spawn,
            ),
            ListOffsetsHandler(access, partitions, search, leadership, local, from_gateway),
            OffsetForLeaderEpochHandler(access, partitions, leadership),
            DeleteRecordsHandler(access, partitions),
            DescribeProducersHandler(access, partitions, leadership),
            InitProducerIdHandler(access, producer_ids, transactions),
            MetadataHandler(
                identity.cluster_id,
                leadership,
                access,
                catalogue,
                auto_create_topics=config.live_bool("auto.create.topics.enable"),
                num_partitions=config.live_int("num.partitions"),
            ),
            DescribeClusterHandler(identity.cluster_id, leadership, access),
            DescribeTopicPartitionsHandler(leadership, access),
            CreateTopicsHandler(
                identity.node_id, access, catalogue, origins=config, replication_factor=replication_factor
            ),
            DeleteTopicsHandler(access, catalogue, enabled=config.live_bool("delete.topic.enable")),
            CreatePartitionsHandler(identity.node_id, access, catalogue),
            AlterPartitionReassignmentsHandler(access, topics, leadership, moves),
            ListPartitionReassignmentsHandler(access, topics, leadership, releases),
            ElectLeadersHandler(access, topics, leadership, moves),
            DescribeLogDirsHandler(log_dir, access, topics, partitions),
            AlterReplicaLogDirsHandler(log_dir, access, topics),
            DescribeConfigsHandler(identity.node_id, config, access, standing, group_configs, telemetry.configs),
            ListConfigResourcesHandler(access, topics, leadership, group_configs, telemetry.configs),
            AlterConfigsHandler(identity.node_id, config, access, catalogue, dynamic, group_configs, telemetry.configs),
            IncrementalAlterConfigsHandler(
                identity.node_id, config, access, catalogue, dynamic, group_configs, telemetry.configs
            ),
            GetTelemetrySubscriptionsHandler(telemetry, config.get_int("telemetry.max.bytes"), clock),
            PushTelemetryHandler(telemetry, config.get_int("telemetry.max.bytes"), clock, workers),
            UpdateFeaturesHandler(access, levels),
            DescribeUserScramCredentialsHandler(access, scram_users),
            AlterUserScramCredentialsHandler(access, scram_users),
            CreateDelegationTokenHandler(access, tokens),
            RenewDelegationTokenHandler(access, tokens),
            ExpireDelegationTokenHandler(access, tokens),
            DescribeDelegationTokenHandler(access, tokens),
            DescribeClientQuotasHandler(access, quotas),
            AlterClientQuotasHandler(access, quotas),
            DescribeAclsHandler(access, acls),
            CreateAclsHandler(access, acls),
            DeleteAclsHandler(access, acls),
            ShareFetchHandler(share_requests, reader, clock, shields),
            ShareAcknowledgeHandler(share_requests),
            *group_handlers(leadership, access, groups, share_admin, clock, features, topics),
            *share_group_handlers(access, groups, share_admin, features, topics, peers),
            *streams_group_handlers(access, groups, StreamsTopics(catalogue, spawn, clock), features),
            *transaction_handlers(access, transactions, local, peers, topics, from_gateway, groups, clock),
        ],
        features,
        telemetry=lambda: telemetry.offered,
    )
    return Assembly(
        config=config,
        manager=manager,
        broker=broker,
        lease=lease,
        identity=identity,
        clock=clock,
        queue=queue,
        workers=workers,
        shields=shields,
        dynamic=dynamic,
        features=levels,
        scram_users=scram_users,
        delegation_tokens=tokens,
        acls=acls,
        quotas=quotas,
        charged=charged,
        arrivals=arrivals,
        topics=topics,
        access=access,
        catalogue=catalogue,
        partitions=partitions,
        shared=shared,
        group_configs=group_configs,
        telemetry=telemetry,
        groups=groups,
        shares=shares,
        share_offsets=share_offsets,
        transactions=transactions,
        peers=peers,
        producer_ids=producer_ids,
        retention=retention,
        cleaner=cleaner,
        opener=Opener(topics, partitions, clock),
        generations=generations,
        leadership=leadership,
        hand_over=HandOver(partitions, generations, releases, living, queue.flow()),
        cluster=cluster,
        feed=ChangeFeed(
            manager,
            [
                cluster,
                releases,
                epochs,
                generations,
                dynamic,
                levels,
                group_configs,
                telemetry.configs,
                shares,
                FollowedTopics(topics, catalogue, manager),
            ],
        ),
        rights_feed=ChangeFeed(manager, [each for each in (scram_users, tokens, quotas, acls) if each is not None]),
        table=table,
        requests=RequestServer(table, lease, identity, clock, charged),
    )


def _window(config: BrokerConfig, names: tuple[str, str]) -> RateWindow:
    """What the settings of these names say: a number of samples, and the seconds of each."""
    samples, seconds = map(config.get_int, names)
    return RateWindow(samples, seconds * 1000)
