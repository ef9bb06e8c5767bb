"""The admin client at controllers instead of brokers (`bootstrap.controllers`, KIP-919)."""

from __future__ import annotations

import anyio
import pytest

import kclient
import kclient.sync
from kclient import ConfigResource, ConfigResourceType
from kclient.admin import Admin, OffsetSpec
from kclient.config import AdminConfig
from kclient.errors import (
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    MismatchedEndpointTypeError,
    UnsupportedEndpointTypeError,
)
from kclient.testing import memory_broker
from tests.kafka_cluster import ONE_CLUSTER, KafkaCluster
from tests.kafka_server import KafkaServer

pytestmark = pytest.mark.anyio

INSTEAD = "talk to brokers, with bootstrap.servers"


@pytest.fixture(params=["kafka", "kafka3"])
def controllers(request: pytest.FixtureRequest) -> str:
    server: KafkaServer = request.getfixturevalue(request.param)
    return f"127.0.0.1:{server.place.controllers[server.place.node_id]}"


@pytest.mark.kafka
async def test_what_controllers_serve(controllers: str) -> None:
    async with Admin(bootstrap_controllers=controllers) as admin:
        described = await admin.describe_cluster()
        assert [f"{node.host}:{node.port}" for node in described.nodes] == [controllers]
        assert described.controller == described.nodes[0]
        assert (await admin.describe_metadata_quorum()).leader_id == described.nodes[0].id
        assert "metadata.version" in (await admin.describe_features()).finalized_features
        resource = ConfigResource(ConfigResourceType.BROKER, str(described.nodes[0].id))
        await admin.alter_configs({resource: {"log.cleaner.threads": "2"}})
        settings = await admin.describe_configs([resource])
        assert settings[resource]["node.id"].value == str(described.nodes[0].id)
        await admin.alter_configs({resource: {"log.cleaner.threads": None}})


@pytest.mark.kafka
async def test_what_they_do_not_serve(controllers: str) -> None:
    """It is said at once, and the client goes on."""
    async with Admin(bootstrap_controllers=controllers) as admin:
        with anyio.fail_after(20):
            for call in (
                lambda: admin.list_topics(),
                lambda: admin.describe_topics(["t"]),
                lambda: admin.list_offsets({("t", 0): OffsetSpec.LATEST}),
                lambda: admin.describe_groups(["g"]),
                lambda: admin.list_groups(),
            ):
                with pytest.raises(UnsupportedEndpointTypeError, match=INSTEAD):
                    await call()
            assert (await admin.describe_cluster()).nodes


@pytest.mark.kafka
def test_in_blocking_code(controllers: str) -> None:
    with kclient.sync.Admin(bootstrap_controllers=controllers) as admin:
        assert admin.describe_metadata_quorum().leader_id >= 0


@pytest.mark.kafka
async def test_brokers_are_no_controllers(kafka: KafkaServer) -> None:
    async with Admin(bootstrap_controllers=kafka.bootstrap, default_api_timeout_ms=5000) as admin:
        with pytest.raises(MismatchedEndpointTypeError, match=r"bootstrap\.controllers has to name controllers"):
            await admin.describe_metadata_quorum()
        with pytest.raises(MismatchedEndpointTypeError, match=r"bootstrap\.controllers has to name controllers"):
            await admin.describe_cluster()


@pytest.mark.kafka
async def test_controllers_are_no_brokers(controllers: str) -> None:
    """What asks brokers fails within its time, with a cause."""
    async with Admin(bootstrap_servers=controllers) as admin:
        with anyio.fail_after(20):
            with pytest.raises(MismatchedEndpointTypeError, match=r"bootstrap\.servers has to name brokers"):
                await admin.describe_cluster()
            with pytest.raises(KafkaError, match="METADATA"):
                await admin.list_topics(timeout=2.0)
    producer = kclient.Producer(bootstrap_servers=controllers, max_block_ms=2000)
    async with producer:
        with anyio.fail_after(20), pytest.raises(KafkaError, match=r"bootstrap\.servers has to name brokers"):
            await producer.send("t", b"1")


async def test_a_gateway_has_none() -> None:
    with memory_broker() as address:
        async with Admin(bootstrap_controllers=address, default_api_timeout_ms=5000) as admin:
            with pytest.raises(KafkaError, match=r"bootstrap\.controllers has to name controllers") as caught:
                await admin.describe_cluster()
            assert not isinstance(caught.value, KafkaTimeoutError)


async def test_controllers_or_brokers() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers and bootstrap\.controllers are both set"):
        Admin(bootstrap_servers="a:1", bootstrap_controllers="b:1")
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        Admin(bootstrap_controllers="")
    config = AdminConfig.parse(bootstrap_controllers="a:1,b:2")
    assert config.replace(client_id="x").bootstrap_servers == ("a:1", "b:2")


@ONE_CLUSTER
@pytest.mark.kafka
async def test_the_active_controller_moves(cluster: KafkaCluster) -> None:
    """Whichever is active is asked, also after it was killed."""
    addresses = [f"127.0.0.1:{port}" for port in cluster.servers[1].place.controllers.values()]
    async with Admin(bootstrap_controllers=addresses, metadata_max_age_ms=1000) as admin:
        with anyio.fail_after(120):
            quorum = await admin.describe_metadata_quorum()
            assert len((await admin.describe_cluster()).nodes) == 3
            active = quorum.leader_id
            cluster.servers[active].stop(kill=True)
            try:
                while (await admin.describe_metadata_quorum()).leader_id == active:
                    await anyio.sleep(0.05)
                assert "metadata.version" in (await admin.describe_features()).finalized_features
            finally:
                await anyio.to_thread.run_sync(cluster.servers[active].start, 60.0)
