"""The KRaft quorum by the admin client and `kclient cluster quorum`: voters come and go, brokers are forgotten."""

from __future__ import annotations

import json
from pathlib import Path

import anyio.to_thread
import pytest

from kclient.admin import Admin, RaftVoterEndpoint
from kclient.cli.app import run
from kclient.errors import (
    BrokerIdNotRegisteredError,
    DuplicateVoterError,
    InconsistentClusterIdError,
    InvalidRequestError,
    UnsupportedVersionError,
    VoterNotFoundError,
)
from kclient.testing import memory_broker
from tests.conftest import require_java
from tests.kafka_artifacts import KAFKA_4
from tests.kafka_server import KafkaServer, Place, free_ports
from tests.wire_session import until

pytestmark = [pytest.mark.anyio, pytest.mark.kafka]

NOBODY = "AAAAAAAAAAAAAAAAAAAAAQ"
ENDPOINT = RaftVoterEndpoint("CONTROLLER", "localhost", 9093)


@pytest.fixture(params=["kafka", "kafka3"])
def broker(request: pytest.FixtureRequest) -> KafkaServer:
    found: KafkaServer = request.getfixturevalue(request.param)
    return found


async def test_the_quorum_is_described(broker: KafkaServer) -> None:
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        found = await admin.describe_metadata_quorum()
    assert found.leader_id == 1
    assert found.leader_epoch > 0
    assert [each.replica_id for each in found.voters] == [1]
    assert 0 < found.high_watermark <= found.voters[0].log_end_offset
    assert found.voters[0].last_caught_up_timestamp is not None
    [endpoint] = found.nodes[1]
    assert (endpoint.listener, endpoint.port) == ("CONTROLLER", broker.place.controllers[1])


async def test_voters_and_brokers_that_are_not_there(broker: KafkaServer) -> None:
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        found = await admin.describe_metadata_quorum()
        # with `controller.quorum.voters` the voters are fixed
        with pytest.raises((UnsupportedVersionError, InvalidRequestError, VoterNotFoundError)):
            await admin.remove_raft_voter(7, NOBODY)
        with pytest.raises((UnsupportedVersionError, InvalidRequestError)):
            await admin.add_raft_voter(7, NOBODY, [ENDPOINT])
        with pytest.raises((InconsistentClusterIdError, UnsupportedVersionError)):
            await admin.remove_raft_voter(1, found.voters[0].directory_id, cluster_id="another")
        with pytest.raises(BrokerIdNotRegisteredError, match="Unregistering broker 7"):
            await admin.unregister_broker(7)


async def test_a_controller_becomes_a_voter_and_a_broker_is_forgotten(tmp_path: Path) -> None:
    require_java()
    controllers = dict(zip((1, 2), free_ports(2), strict=True))
    follows = {
        "controller.quorum.voters": "",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controllers[1]}",
    }
    nodes = []
    for number in controllers:
        folder = tmp_path / str(number)
        folder.mkdir()
        nodes.append(KafkaServer(KAFKA_4, folder, follows, place=Place(number, controllers), heap="512m"))
    first, second = nodes
    cluster_id = KafkaServer.new_cluster_id()
    first.format("--standalone", cluster_id=cluster_id)
    second.format("--no-initial-controllers", cluster_id=cluster_id)
    try:
        for node in nodes:
            await anyio.to_thread.run_sync(node.start)
        async with Admin(bootstrap_servers=first.bootstrap) as admin:
            before = await until(
                admin.describe_metadata_quorum,
                lambda found: any(each.replica_id == 2 and each.log_end_offset > 0 for each in found.observers),
            )
            [observer] = [each for each in before.observers if each.replica_id == 2]
            endpoint = RaftVoterEndpoint("CONTROLLER", "127.0.0.1", controllers[2])
            with pytest.raises(InconsistentClusterIdError):
                await admin.add_raft_voter(2, observer.directory_id, [endpoint], cluster_id="another")
            await admin.add_raft_voter(2, observer.directory_id, [endpoint], cluster_id=cluster_id)
            with pytest.raises(DuplicateVoterError, match="Adding voter 2"):
                await admin.add_raft_voter(2, observer.directory_id, [endpoint])
            found = await admin.describe_metadata_quorum()
            assert [each.replica_id for each in found.voters] == [1, 2]
            assert found.nodes[2] == (endpoint,)
            with pytest.raises(VoterNotFoundError, match="Removing voter 2"):
                await admin.remove_raft_voter(2, NOBODY)
            await admin.remove_raft_voter(2, observer.directory_id)
            assert [each.replica_id for each in (await admin.describe_metadata_quorum()).voters] == [1]
            await anyio.to_thread.run_sync(second.stop)
            await admin.unregister_broker(2)
            with pytest.raises(BrokerIdNotRegisteredError):
                await admin.unregister_broker(2)
    finally:
        for node in nodes:
            await anyio.to_thread.run_sync(node.stop)


async def test_the_quorum_command(kafka: KafkaServer, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["cluster", "quorum", "--bootstrap", kafka.bootstrap, "--output", "json"]
    assert await anyio.to_thread.run_sync(run, at) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["leader"] == 1
    assert [(row["node"], row["role"], row["lag"]) for row in found["members"]] == [(1, "active", 0)]


async def test_a_gateway_has_no_quorum() -> None:
    with memory_broker() as address:
        async with Admin(bootstrap_servers=address) as admin:
            with pytest.raises(UnsupportedVersionError):
                await admin.describe_metadata_quorum()
            with pytest.raises(UnsupportedVersionError):
                await admin.unregister_broker(1)
