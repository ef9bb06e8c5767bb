"""The tables that decide: what they allow, and that the documentation draws and explains them."""

from __future__ import annotations

import re
from enum import Enum
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kclient.cluster.client_state import CLIENT_TABLE, ClientEvent, ClientState
from kclient.cluster.connections import LINK_TABLE, LinkEvent, LinkState
from kclient.consumer.group.remote_states import REMOTE_TABLE, RemoteEvent, RemoteState
from kclient.consumer.group.states import (
    COORDINATOR_TABLE,
    ERRAND_TABLE,
    HOLDING_TABLE,
    MEMBER_TABLE,
    CoordinatorEvent,
    CoordinatorState,
    ErrandEvent,
    ErrandState,
    HoldingEvent,
    HoldingState,
    MemberEvent,
    MemberState,
)
from kclient.consumer.partition_state import POSITION_TABLE, PositionEvent, PositionState
from kclient.consumer.share.states import (
    SHARE_SESSION_TABLE,
    SHARE_TABLE,
    ShareEvent,
    ShareSessionEvent,
    ShareSessionState,
    ShareState,
)
from kclient.errors import IllegalStateError
from kclient.gateway.append import APPEND_TABLE, AppendEvent, AppendState
from kclient.gateway.groups.consumers.states import (
    CONSUMER_GROUP_TABLE,
    RECONCILING_TABLE,
    ConsumerGroupEvent,
    ConsumerGroupState,
    ReconcilingEvent,
    ReconcilingState,
)
from kclient.gateway.groups.states import GROUP_TABLE, GroupEvent, GroupState
from kclient.gateway.groups.streaming.states import (
    STREAMS_GROUP_TABLE,
    TASK_TABLE,
    StreamsGroupEvent,
    StreamsGroupState,
    TaskEvent,
    TaskState,
)
from kclient.gateway.membership.states import GATEWAY_TABLE, GatewayEvent, GatewayState
from kclient.gateway.partition_states import PARTITION_TABLE, PartitionEvent, PartitionPhase
from kclient.gateway.shares.states import RECORD_TABLE, RecordEvent, RecordState
from kclient.gateway.transaction_states import COORDINATED_TABLE, CoordinatedEvent, CoordinatedState
from kclient.inprocess.hosts import HOST_TABLE, HostEvent, HostState
from kclient.metrics.telemetry import TELEMETRY_TABLE, TelemetryEvent, TelemetryState
from kclient.net.sasl.authentication import AUTHENTICATION_TABLE, AuthenticationEvent, AuthenticationState
from kclient.net.sasl.mechanism import EXCHANGE_TABLE, ExchangeEvent, ExchangeState
from kclient.net.sasl.session import SESSION_TABLE, SessionEvent, SessionState
from kclient.processing.states import PROCESSING_TABLE, ProcessingEvent, ProcessingState
from kclient.producer.states import (
    BATCH_TABLE,
    EVIDENCE_TABLE,
    PRODUCER_ID_TABLE,
    TRANSACTION_TABLE,
    AttemptOutcome,
    BatchEvent,
    BatchState,
    Evidence,
    ProducerIdEvent,
    ProducerIdPhase,
    TransactionEvent,
    TransactionState,
)
from kclient.state_tables import diagram, next_state

INTERNALS = Path(__file__).parents[2] / "docs" / "internals"


class Machine(NamedTuple):
    table: dict[Any, dict[Any, Any]]
    states: type[Enum]
    events: type[Enum]
    page: str


MACHINES = {
    "append": Machine(APPEND_TABLE, AppendState, AppendEvent, "gateway.md"),
    "authentication": Machine(AUTHENTICATION_TABLE, AuthenticationState, AuthenticationEvent, "connection.md"),
    "batch": Machine(BATCH_TABLE, BatchState, BatchEvent, "producer.md"),
    "client": Machine(CLIENT_TABLE, ClientState, ClientEvent, "cluster.md"),
    "consumer group": Machine(CONSUMER_GROUP_TABLE, ConsumerGroupState, ConsumerGroupEvent, "groups.md"),
    "coordinated transaction": Machine(COORDINATED_TABLE, CoordinatedState, CoordinatedEvent, "transactions.md"),
    "coordinator": Machine(COORDINATOR_TABLE, CoordinatorState, CoordinatorEvent, "coordinator.md"),
    "errand": Machine(ERRAND_TABLE, ErrandState, ErrandEvent, "coordinator.md"),
    "evidence": Machine(EVIDENCE_TABLE, Evidence, AttemptOutcome, "producer.md"),
    "exchange": Machine(EXCHANGE_TABLE, ExchangeState, ExchangeEvent, "connection.md"),
    "gateway": Machine(GATEWAY_TABLE, GatewayState, GatewayEvent, "several-gateways.md"),
    "group": Machine(GROUP_TABLE, GroupState, GroupEvent, "groups.md"),
    "host": Machine(HOST_TABLE, HostState, HostEvent, "inprocess.md"),
    "holding": Machine(HOLDING_TABLE, HoldingState, HoldingEvent, "coordinator.md"),
    "link": Machine(LINK_TABLE, LinkState, LinkEvent, "cluster.md"),
    "member": Machine(MEMBER_TABLE, MemberState, MemberEvent, "coordinator.md"),
    "partition": Machine(PARTITION_TABLE, PartitionPhase, PartitionEvent, "gateway.md"),
    "record of a share group": Machine(RECORD_TABLE, RecordState, RecordEvent, "shares.md"),
    "position": Machine(POSITION_TABLE, PositionState, PositionEvent, "fetching.md"),
    "processing": Machine(PROCESSING_TABLE, ProcessingState, ProcessingEvent, "transactions.md"),
    "producer id": Machine(PRODUCER_ID_TABLE, ProducerIdPhase, ProducerIdEvent, "producer.md"),
    "reconciling": Machine(RECONCILING_TABLE, ReconcilingState, ReconcilingEvent, "groups.md"),
    "remote member": Machine(REMOTE_TABLE, RemoteState, RemoteEvent, "coordinator.md"),
    "session": Machine(SESSION_TABLE, SessionState, SessionEvent, "connection.md"),
    "share member": Machine(SHARE_TABLE, ShareState, ShareEvent, "share.md"),
    "share session": Machine(SHARE_SESSION_TABLE, ShareSessionState, ShareSessionEvent, "share.md"),
    "streams group": Machine(STREAMS_GROUP_TABLE, StreamsGroupState, StreamsGroupEvent, "groups.md"),
    "tasks of a streams group": Machine(TASK_TABLE, TaskState, TaskEvent, "groups.md"),
    "telemetry": Machine(TELEMETRY_TABLE, TelemetryState, TelemetryEvent, "metrics.md"),
    "transaction": Machine(TRANSACTION_TABLE, TransactionState, TransactionEvent, "transactions.md"),
}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[request.param]


def test_the_documentation_draws_the_table(machine: Machine) -> None:
    drawn = re.findall(r"```mermaid\n(.*?)\n```", (INTERNALS / machine.page).read_text("utf-8"), re.S)
    assert diagram(machine.table) in drawn, diagram(machine.table)


def test_the_documentation_explains_each_state(machine: Machine) -> None:
    text = (INTERNALS / machine.page).read_text("utf-8")
    assert [state.name for state in machine.states if f"`{state.name}`" not in text] == []


def test_every_state_has_a_row_and_every_event_a_place(machine: Machine) -> None:
    assert list(machine.table) == list(machine.states)
    assert {event for row in machine.table.values() for event in row} == set(machine.events)
    reached = {following for row in machine.table.values() for following in row.values()}
    assert set(machine.states) - reached <= {next(iter(machine.states))}


def test_looking_up_calls_no_python(machine: Machine) -> None:
    """A batch goes through four states: with Enum's own hash that took a microsecond."""
    for kind in (machine.states, machine.events):
        assert kind.__hash__ in (object.__hash__, int.__hash__)


def test_what_the_table_does_not_name_must_not_happen(machine: Machine) -> None:
    for state, event in product(machine.states, machine.events):
        if event in machine.table[state]:
            assert next_state(machine.table, state, event, "it") is machine.table[state][event]
        else:
            with pytest.raises(IllegalStateError, match=f"it: {event.name} must not happen in {state.name}"):
                next_state(machine.table, state, event, "it")


def test_the_error_names_the_machine() -> None:
    with pytest.raises(IllegalStateError, match="MemberState: COMPLETED must not happen in UNJOINED"):
        next_state(MEMBER_TABLE, MemberState.UNJOINED, MemberEvent.COMPLETED)
