"""A group of our consumers in simulated time: their coordinators against the gateway's group, over a network that
delays and loses. Nothing waits; the events lie in a heap."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from kclient.cluster import Backoff
from kclient.consumer.group.assignors import Assignor, RebalanceProtocol
from kclient.consumer.group.member import GroupMember
from kclient.consumer.group.model import GroupRequest, MemberSettings, Prepare, RequestKind
from kclient.consumer.group.states import MemberState
from kclient.errors import BrokerConnectionError, ErrorCode, KafkaError
from kclient.gateway.groups.classic import ClassicGroup
from kclient.gateway.groups.events import GroupSettings as BrokerSettings
from kclient.gateway.groups.events import Leave, Reply, StoreSnapshot, Token
from kclient.gateway.rows.groups import GroupSnapshot
from kclient.protocol.messages import FindCoordinatorResponse, HeartbeatResponse, LeaveGroupResponse
from kclient.types import TopicPartition
from tests.simulation.group_messages import NOT_COORDINATOR, join_event, join_response, sync_event, sync_response


class SimulatedConsumer:
    """One member: its state machine, and a user who polls."""

    def __init__(
        self,
        world: World,
        name: str,
        assignors: Sequence[Assignor],
        topics: set[str],
        *,
        poll_every: float = 0.5,
        instance_id: str | None = None,
        max_poll_interval: float = 30.0,
        pattern: bool = False,
    ) -> None:
        self.world = world
        self.name = name
        self.poll_every = poll_every
        self.owned: set[TopicPartition] = set()
        self.events: list[tuple[str, list[TopicPartition]]] = []
        self.errors: list[KafkaError] = []
        self.alive = True
        self.beats = 0
        self.joins = 0
        self.pattern = pattern
        settings = MemberSettings(
            "g",
            instance_id,
            session_timeout=10.0,
            heartbeat_interval=3.0,
            max_poll_interval=max_poll_interval,
            request_timeout=5.0,
            retry_backoff=Backoff(100, 1000, random=world.random),
        )
        self.machine = GroupMember(settings, assignors)
        self._turn = 0
        if not pattern:
            self.subscribe(topics)
        world.consumers.append(self)
        self.learn()
        self.poll()

    @property
    def eager(self) -> bool:
        return self.machine.protocol is RebalanceProtocol.EAGER

    @property
    def settled(self) -> bool:
        return self.machine.state is MemberState.STABLE

    def subscribe(self, topics: set[str]) -> None:
        self.topics = set(topics)
        self.machine.subscribe(topics)

    def learn(self) -> None:
        """Metadata arrive."""
        counts = self.world.counts
        if self.pattern:
            self.topics = set(counts)
            self.machine.subscribe(counts, by_pattern=True)
        self.machine.update_metadata(counts, [], self.world.now)
        self.drive()

    def poll(self) -> None:
        if not self.alive:
            return
        try:
            self.machine.polled(self.world.now)
        except KafkaError as error:
            self.errors.append(error)
        while (step := self.machine.step()) is not None:
            if isinstance(step, Prepare):
                going = (
                    set(self.owned)
                    if self.eager or step.lost
                    else {tp for tp in self.owned if tp.topic not in self.topics}
                )
                self._tell("lost" if step.lost else "revoked", going)
                self.owned -= going
                self.machine.prepared(step, self.owned, self.world.now)
            else:
                new = set(step.assigned)
                gone = set() if self.eager else self.owned - new
                self._tell("revoked", gone)
                self._tell("assigned", new - self.owned)
                self.owned = new
                self.machine.completed(step, gave_up=bool(gone))
        self.drive()
        self.world.after(self.poll_every * self.world.random.uniform(0.5, 1.5), self.poll)

    def _tell(self, what: str, partitions: set[TopicPartition]) -> None:
        if partitions:
            self.events.append((what, sorted(partitions)))

    def drive(self) -> None:
        """Send what the machine wants, and look again when it says so."""
        if not self.alive:
            return
        todo = self.machine.next(self.world.now)
        for request in todo.requests:
            self.beats += request.kind is RequestKind.HEARTBEAT
            self.joins += request.kind is RequestKind.JOIN
            self.world.send(self, request)
        if todo.refresh is not None:
            self.world.after(self.world.latency(), lambda: self._refreshed(todo.refresh))
        self._turn += 1
        turn = self._turn
        if todo.wake_at < float("inf"):
            self.world.after(
                max(todo.wake_at - self.world.now, 0.001), lambda: self.drive() if turn == self._turn else None
            )

    def _refreshed(self, number: int) -> None:
        if self.alive:
            self.learn()
            self.machine.refreshed(number)
            self.drive()

    def commit(self) -> None:
        """As the committer does; the answer may come when the member is somebody else."""
        epoch = self.machine.lookup.epoch
        try:
            identity = self.machine.commit_identity()
        except KafkaError:
            return
        code = self.world.random.choice(_COMMIT_ANSWERS)

        def answered() -> None:
            if self.alive and code:
                self.machine.commit_refused(code, identity, epoch, self.world.now)
                self.drive()

        self.world.after(self.world.random.uniform(0, 5), answered)

    def answered(self, request: GroupRequest, response: Any) -> None:
        if self.alive:
            self.machine.received(request, response, self.world.now)
            self.drive()

    def failed(self, request: GroupRequest) -> None:
        if self.alive:
            self.machine.failed(request, BrokerConnectionError("the connection broke"), self.world.now)
            self.drive()

    def close(self) -> None:
        self.owned = set()
        self.machine.leave("closed")
        self.drive()
        self.alive = False

    def crash(self) -> None:
        self.alive = False


_COMMIT_ANSWERS = [
    ErrorCode.NONE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
]


class World:
    """The brokers, one of which has the group; the consumers, the network and the time."""

    def __init__(self, seed: int, counts: dict[str, int], *, loss: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.loss = loss
        self.counts = counts
        self.now = 1000.0
        self.consumers: list[SimulatedConsumer] = []
        self.strict = loss == 0
        self.coordinator = 1
        """The broker that has the group."""
        self.hung: set[int] = set()
        """Brokers that answer nothing."""
        self._swallowed: list[tuple[SimulatedConsumer, GroupRequest]] = []
        self._parked: dict[int, list[Callable[[Any], None]]] = {}
        """Requests that hung brokers were about to answer."""
        self.connecting: dict[str, float] = {}
        """Until when a member's connection is being made."""
        self._stored: GroupSnapshot | None = None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ids = itertools.count(1)
        self._waiting: dict[Token, Callable[[Any], None]] = {}
        self.group = self._new_group()

    def _new_group(self) -> ClassicGroup:
        settings = BrokerSettings(group_initial_rebalance_delay_ms=0)
        return ClassicGroup("g", settings, lambda prefix: f"{prefix}-{next(self._ids)}")

    # ---- time ----

    def after(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            event = self._events[0][0] if self._events else float("inf")
            deadline = self.group.next_deadline()
            at = min(event, float("inf") if deadline is None else deadline)
            if at > end:
                break
            self.now = max(self.now, at)
            if deadline is not None and deadline <= event:
                self._perform(self.group.advance(self.now))
            else:
                heapq.heappop(self._events)[2]()
            if self.strict:
                self.check()
        self.now = end

    def run_until(self, met: Callable[[], bool], limit: float = 120.0) -> None:
        end = self.now + limit
        while not met():
            assert self.now < end, [(c.name, c.machine.state, c.owned, c.errors) for c in self.consumers]
            self.run(0.25)

    @property
    def living(self) -> list[SimulatedConsumer]:
        return [consumer for consumer in self.consumers if consumer.alive]

    def check(self) -> None:
        """No partition has two readers."""
        owned = [tp for consumer in self.living for tp in consumer.owned]
        assert len(owned) == len(set(owned)), [(c.name, c.machine.state, c.owned) for c in self.living]

    def settled(self) -> bool:
        """Everybody is a stable member, and everything subscribed to has exactly one reader."""
        if not all(consumer.settled for consumer in self.living):
            return False
        wanted = {topic for consumer in self.living for topic in consumer.topics}
        everything = {TopicPartition(t, n) for t, count in self.counts.items() if t in wanted for n in range(count)}
        owned = [tp for consumer in self.living for tp in consumer.owned]
        return len(owned) == len(set(owned)) and set(owned) == everything

    def learn(self, counts: dict[str, int]) -> None:
        self.counts = counts
        for consumer in self.living:
            consumer.learn()

    # ---- the network ----

    def lost(self) -> bool:
        return self.random.random() < self.loss

    def latency(self) -> float:
        return self.random.uniform(0.001, 0.1)

    def send(self, consumer: SimulatedConsumer, request: GroupRequest) -> None:
        def answered(response: Any) -> None:
            if self.lost():
                self.after(self.latency(), lambda: consumer.failed(request))
            else:
                self.after(self.latency(), lambda: consumer.answered(request, response))

        delay = self.latency()
        if self.lost():
            # the connection breaks, and the next one takes its time
            self.connecting[consumer.name] = self.now + self.random.choice([0.0, 0.0, 2.0])
            self.after(delay, lambda: consumer.failed(request))
        elif request.node_id in self.hung:
            self._swallow(consumer, request)
        else:
            delay += max(self.connecting.get(consumer.name, 0.0) - self.now, 0.0)
            self.after(delay, lambda: self._serve(consumer, request, answered))

    def move(self, *, hangs: bool) -> None:
        """Another broker has the group from now on; the one before hangs, or says so."""
        if hangs:
            # not answered, until it runs again and gives the group up: the members find out by themselves
            self.hung.add(self.coordinator)
            self._parked[self.coordinator] = [*self._parked.get(self.coordinator, []), *self._waiting.values()]
            self._waiting = {}
        self.coordinator = self.coordinator % 3 + 1
        self.hung.discard(self.coordinator)
        for give_up in self._parked.pop(self.coordinator, []):
            give_up(None)
        swallowed, self._swallowed = self._swallowed, []
        for consumer, request in swallowed:
            if request.node_id in self.hung:
                self._swallowed.append((consumer, request))
            else:  # it was restarted, so its connections broke
                self.after(self.latency(), lambda fail=consumer.failed, request=request: fail(request))
        self.restart()

    def _swallow(self, consumer: SimulatedConsumer, request: GroupRequest) -> None:
        self._swallowed.append((consumer, request))
        self.after(request.timeout, lambda: consumer.failed(request))

    def restart(self) -> None:
        """The broker is killed and comes back: what was parked and not stored is gone."""
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer(None)
        self.group = self._new_group()
        if self._stored is not None:
            self._perform(self.group.restore(self._stored, self.now))

    # ---- the broker ----

    def _serve(self, consumer: SimulatedConsumer, request: GroupRequest, answer: Callable[[Any], None]) -> None:
        message: Any = request.build(
            request.request_class.VERSIONS[1] if request.kind is not RequestKind.FIND_COORDINATOR else 3
        )
        if request.kind is RequestKind.FIND_COORDINATOR:
            answer(FindCoordinatorResponse(node_id=self.coordinator, host="broker", port=9092))
        elif request.node_id in self.hung:
            self._swallow(consumer, request)
        elif request.node_id != self.coordinator:
            answer(NOT_COORDINATOR[request.kind])
        elif request.kind is RequestKind.HEARTBEAT:
            code = self.group.heartbeat(message.member_id, message.group_instance_id, message.generation_id, self.now)
            answer(HeartbeatResponse(error_code=code))
        elif request.kind is RequestKind.LEAVE:
            leaving = [Leave(member.member_id, member.group_instance_id) for member in message.members]
            self._perform(self.group.leave(leaving, self.now)[1])
            answer(LeaveGroupResponse())
        else:
            token = Token()
            wrap = join_response if request.kind is RequestKind.JOIN else sync_response

            def reply(result: Any) -> None:
                if result is None:
                    self.after(self.latency(), lambda: consumer.failed(request))
                else:
                    answer(wrap(result))

            self._waiting[token] = reply
            if request.kind is RequestKind.JOIN:
                self._perform(self.group.join(join_event(message, consumer.name), token, self.now))
            else:
                self._perform(self.group.sync(sync_event(message), token, self.now))

    def _perform(self, actions: Sequence[Reply | StoreSnapshot]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                waiting = self._waiting.pop(action.token, None)
                if waiting is not None:
                    waiting(action.result)
            else:
                self.after(
                    self.random.uniform(0.0005, 0.02), lambda store=action, group=self.group: self._store(store, group)
                )

    def _store(self, store: StoreSnapshot, group: ClassicGroup) -> None:
        if group is self.group:
            self._stored = store.snapshot
            self._perform(group.stored(store.ticket, ErrorCode.NONE, self.now))
