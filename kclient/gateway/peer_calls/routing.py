"""The gateways of a cluster, as they ask one another: finds who leads and who coordinates, and asks again who does."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from kclient.concurrency import loop_clock
from kclient.errors import (
    BrokerConnectionError,
    CoordinatorNotAvailableError,
    ErrorCode,
    KafkaError,
    NotCoordinatorError,
    error_for,
)
from kclient.gateway.coordination import CoordinatorType
from kclient.gateway.peer_calls.connecting import connect_to
from kclient.gateway.peer_calls.lane import PeerLane
from kclient.gateway.peer_calls.names import client_id_of
from kclient.gateway.peer_calls.requests import (
    JOIN,
    LIST_ENDS,
    TELL,
    VERIFY,
    WRITE_ENDS,
    PeerRequest,
    ToJoin,
    ToVerify,
)
from kclient.net.settings import ConnectionSettings

if TYPE_CHECKING:
    from kclient.concurrency import Supervisor
    from kclient.gateway.cluster_generations import ClusterGenerations
    from kclient.gateway.identity import Identity
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.membership import LiveGateways
    from kclient.gateway.partition_id import PartitionId
    from kclient.gateway.peers import EndOfTransaction, LocalPeers, Outcomes, TransactionOf
    from kclient.gateway.rows.gateways import GatewayRow
    from kclient.gateway.topics.table import TopicTable
    from kclient.net.address import Address

K = TypeVar("K")

logger: logging.Logger = logging.getLogger("kclient.gateway.peers")

_PATIENCE_S: Final = 1.0
"""Seconds for which the coordinator of a transaction is looked for."""
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.2
"""Seconds until it is looked for again."""
_HEARD_S: Final = 1.0
"""Seconds after which all is known here that others had changed before a generation; it takes a tenth of one."""
_CONNECT_MS: Final = 3000
"""Milliseconds that another gateway has to accept a connection."""
_LOOK_AGAIN: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,  # it has not seen this gateway's row yet
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # nor that of a topic which is led here
    }
)


class ClusterPeers:
    """All gateways of the store. Implements `peers.Peers`.

    Args:
        local: This one.
        identity: Who it is.
        topics: All topics.
        leadership: Tells who leads, and who coordinates.
        generations: Tell which runs of gateways serve.
        gateways: Tell where the others are.
        store: The address under which clients name the store, if there is one.
        supervisor: Runs tasks and connections.
    """

    def __init__(
        self,
        local: LocalPeers,
        identity: Identity,
        topics: TopicTable,
        leadership: Leadership,
        generations: ClusterGenerations,
        gateways: LiveGateways,
        *,
        store: Address | None,
        supervisor: Supervisor,
    ) -> None:
        self._local = local
        self._node_id = identity.node_id
        self._topics = topics
        self._leadership = leadership
        self._generations = generations
        self._gateways = gateways
        self._store = store
        self._supervisor = supervisor
        self._settings = ConnectionSettings(
            client_id=client_id_of(identity.node_id, identity.run), socket_connection_setup_timeout_ms=_CONNECT_MS
        )
        self._lanes: dict[tuple[int, int, PeerRequest[Any, Any]], PeerLane[Any, Any]] = {}
        """By the number of a gateway, the epoch of its run's lease, and what is asked."""
        self._now = loop_clock()
        self._changed = self._now()
        """Since when the newest generation is known."""
        leadership.on_change(self._leave)

    def _leave(self) -> None:
        """There is another generation: whoever is not in it is asked nothing any more."""
        self._changed = self._now()
        members = self._generations.current.newest.members
        for key in list(self._lanes):
            if members.get(key[0]) != key[1]:
                self._lanes.pop(key).close()

    def close(self) -> None:
        """Ask nobody any more; who waits is told so."""
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.close()

    def _lane(self, node_id: int, kind: PeerRequest[Any, Any]) -> PeerLane[Any, Any]:
        run = self._generations.current.newest.members.get(node_id)
        if run is None:
            raise BrokerConnectionError(f"the gateway with node.id={node_id} does not serve the store")
        lane = self._lanes.get((node_id, run, kind))
        if lane is None:
            lane = self._lanes[node_id, run, kind] = PeerLane(
                kind,
                f"the gateway with node.id={node_id}",
                lambda: connect_to(self._row(node_id, run), self._store, self._settings, self._supervisor),
                self._supervisor.spawn,
            )
        return lane

    def _row(self, node_id: int, run: int) -> GatewayRow:
        for row in self._gateways.others:
            if row.node_id == node_id and row.epoch == run:
                return row
        raise BrokerConnectionError(f"where the gateway with node.id={node_id} listens is not known, or it is lost")

    async def verify(self, transaction: TransactionOf, partitions: Collection[PartitionId], *, add: bool) -> Outcomes:
        """Asks the coordinator, wherever it is by now.

        Raises:
            KafkaError: As the coordinator here; `CoordinatorNotAvailableError` if another one cannot be asked now.
        """
        wanted = list(partitions)

        async def ask(node_id: int) -> Outcomes:
            if node_id == self._node_id:
                return await self._local.verify(transaction, wanted, add=add)
            return await self._ask(node_id, VERIFY, ToVerify(transaction, add), wanted)

        return await self._of_coordinator(transaction.transactional_id, ask)

    async def join_group(self, transaction: TransactionOf, group_id: str) -> None:
        """Asks the coordinator, wherever it is by now.

        Raises:
            KafkaError: As the coordinator here; `CoordinatorNotAvailableError` if another one cannot be asked now.
        """

        async def ask(node_id: int) -> Mapping[str, int]:
            if node_id != self._node_id:
                return await self._ask(node_id, JOIN, ToJoin(transaction, group_id), [group_id])
            await self._local.join_group(transaction, group_id)
            return {}

        outcomes = await self._of_coordinator(transaction.transactional_id, ask)
        code = outcomes.get(group_id, ErrorCode.NONE)
        if code != ErrorCode.NONE:
            raise error_for(
                code,
                f"the coordinator of {transaction.transactional_id[:300]!r} does not add the group {group_id[:300]!r}",
            )

    async def _of_coordinator(
        self, transactional_id: str, ask: Callable[[int], Awaitable[Mapping[K, int]]]
    ) -> Mapping[K, int]:
        """Ask whoever coordinates a transaction by now, until that one does."""
        until, pause = anyio.current_time() + _PATIENCE_S, _FIRST_PAUSE_S
        while True:
            try:
                outcomes = await ask(self._leadership.coordinator_id(CoordinatorType.TRANSACTION, transactional_id))
            except (NotCoordinatorError, CoordinatorNotAvailableError) as error:
                problem: KafkaError = error
            else:
                again = {code for code in outcomes.values() if code in _LOOK_AGAIN}
                if not again:
                    return outcomes
                problem = CoordinatorNotAvailableError(
                    f"the coordinator of {transactional_id[:300]!r} answers {ErrorCode(min(again)).name}"
                )
            if anyio.current_time() >= until:
                raise problem
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _ask(self, node_id: int, kind: PeerRequest[Any, K], what: Any, wanted: Sequence[K]) -> Mapping[K, int]:
        try:
            found: Mapping[K, int] = await self._lane(node_id, kind).ask(what, wanted)
        except KafkaError as error:
            raise CoordinatorNotAvailableError(
                f"the gateway with node.id={node_id}, which coordinates "
                f"{what.transaction.transactional_id[:300]!r}, cannot be asked: {error}"
            ) from error
        return found

    def tell_outcome(self, group_ids: Collection[str]) -> None:
        """Tells each where it is coordinated by now."""
        here = []
        for group_id in group_ids:
            node_id = self._leadership.coordinator_id(CoordinatorType.GROUP, group_id)
            if node_id == self._node_id:
                here.append(group_id)
            else:
                self._supervisor.spawn(self._tell, node_id, group_id, name="tell the outcome of a transaction")
        if here:
            self._local.tell_outcome(here)

    async def _tell(self, node_id: int, group_id: str) -> None:
        try:
            await self._lane(node_id, TELL).ask(group_id, [group_id])
        except KafkaError as error:
            logger.debug("the gateway with node.id=%d looks for outcomes by itself: %s", node_id, error)

    async def ends(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, int]:
        """Asks each leader, all at the same time."""
        by_leader: dict[int, list[PartitionId]] = {}
        for each in partitions:
            record = self._topics.by_id(each.topic_id)
            if record is not None and each.partition < record.partitions:
                by_leader.setdefault(self._leadership.leader(record, each.partition).node_id, []).append(each)
        found: dict[PartitionId, int] = {}
        async with anyio.create_task_group() as tasks:
            for node_id, wanted in by_leader.items():
                tasks.start_soon(self._ends_of, node_id, wanted, found)
        return found

    async def _ends_of(self, node_id: int, wanted: Sequence[PartitionId], found: dict[PartitionId, int]) -> None:
        if node_id == self._node_id:
            found.update(await self._local.ends(wanted))
            return
        try:
            ends = await self._lane(node_id, LIST_ENDS).ask(None, wanted)
        except KafkaError as error:
            logger.debug("the gateway with node.id=%d cannot be asked for ends of partitions: %s", node_id, error)
        else:
            found.update({each: end for each, end in ends.items() if end >= 0})

    async def write_markers(self, ends: Sequence[EndOfTransaction]) -> list[Outcomes]:
        """Has each leader append what it leads, all at the same time."""
        outcomes: list[dict[PartitionId, int]] = [{} for _ in ends]
        here: list[list[PartitionId]] = [[] for _ in ends]
        async with anyio.create_task_group() as tasks:
            for end, found, local in zip(ends, outcomes, here, strict=True):
                for node_id, wanted in self._by_leader(end, found).items():
                    if node_id == self._node_id:
                        local += wanted
                    else:
                        tasks.start_soon(self._write_there, node_id, end, wanted, found)
            if any(here):
                tasks.start_soon(partial(self._write_here, ends, here, outcomes))
        return list(outcomes)

    def _by_leader(self, end: EndOfTransaction, found: dict[PartitionId, int]) -> dict[int, list[PartitionId]]:
        """The partitions of a transaction by who leads them; the codes of those that nobody does go to `found`."""
        by_leader: dict[int, list[PartitionId]] = {}
        for each in end.partitions:
            record = self._topics.by_id(each.topic_id)
            if record is None:
                heard = self._now() >= self._changed + _HEARD_S
                found[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if heard else ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif each.partition >= record.partitions:  # it has grown, and that is not known here yet
                found[each] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                by_leader.setdefault(self._leadership.leader(record, each.partition).node_id, []).append(each)
        return by_leader

    async def _write_here(
        self,
        ends: Sequence[EndOfTransaction],
        here: Sequence[Sequence[PartitionId]],
        outcomes: Sequence[dict[PartitionId, int]],
    ) -> None:
        own = [end._replace(partitions=wanted) for end, wanted in zip(ends, here, strict=True)]
        for found, written in zip(outcomes, await self._local.write_markers(own), strict=True):
            found.update(written)

    async def _write_there(
        self, node_id: int, end: EndOfTransaction, wanted: Sequence[PartitionId], found: dict[PartitionId, int]
    ) -> None:
        try:
            codes = await self._lane(node_id, WRITE_ENDS).ask(end, wanted)
        except KafkaError as error:
            logger.debug("the gateway with node.id=%d cannot be asked for ends of transactions: %s", node_id, error)
            found.update(dict.fromkeys(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER))  # it is tried again
            return
        for each, code in codes.items():
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._topics.by_id(each.topic_id) is not None:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER  # the other has not heard of it yet
            found[each] = code
