"""The level of `transaction.version` changed under clients: real Kafka 4.3 and the gateway answer the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
import pytest

import kclient
from kclient.admin import Admin, FeatureUpdate, NewTopic, OffsetSpec, UpgradeType
from kclient.errors import ErrorCode, InvalidUpdateVersionError
from kclient.protocol import messages as m
from tests.kafka_artifacts import KAFKA_4
from tests.kafka_server import JavaTools, KafkaServer
from tests.wire_session import WireSession, until, wire_session

pytestmark = pytest.mark.anyio

NAME = "transaction.version"
UPGRADE, SAFE, UNSAFE = 1, 2, 3
TOOL = "org.apache.kafka.tools.FeatureCommand"


async def level_of(admin: Admin) -> int:
    found = (await admin.describe_features()).finalized_features.get(NAME)
    return 0 if found is None else found.max_version_level


@pytest.fixture(params=[pytest.param("kafka", marks=pytest.mark.kafka), "gateway"])
async def bootstrap(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A server that others use too: it has level 2 in the end."""
    found: KafkaServer | str = request.getfixturevalue(request.param)
    address = found if isinstance(found, str) else found.bootstrap
    try:
        yield address
    finally:
        async with Admin(bootstrap_servers=address) as admin:
            await admin.update_features({NAME: FeatureUpdate(2)})
            await until(lambda: level_of(admin), lambda level: level == 2)


async def ask(wire: WireSession, level: int, kind: int, *, name: str = NAME, dry: bool = True, version: int = 2) -> Any:
    row = m.FeatureUpdateKey(feature=name, max_version_level=level)
    if version:
        row.upgrade_type = kind
    return await wire(m.UpdateFeaturesRequest(feature_updates=[row], validate_only=dry and version > 0), version)


@pytest.mark.parametrize("version", range(3))
async def test_what_is_refused_and_what_is_not(bootstrap: str, version: int) -> None:
    invalid, fine = ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NONE
    async with wire_session(bootstrap) as wire:
        for level, kind, code in (
            (2, UPGRADE, fine), (3, UPGRADE, invalid), (-1, UPGRADE, invalid), (1, UPGRADE, invalid),
        ):  # fmt: skip
            answer = await ask(wire, level, kind, version=version)
            assert answer.error_code == code, (level, kind)
            assert bool(answer.results) is (version < 2 and code == fine)
        assert (await ask(wire, 1, UPGRADE, name="no.such", version=version)).error_code == invalid
        if version:
            for level, kind, code in (
                (1, SAFE, fine), (0, SAFE, fine), (0, UNSAFE, fine), (2, SAFE, fine), (3, SAFE, invalid),
                (1, 0, invalid), (1, 9, invalid),
            ):  # fmt: skip
                assert (await ask(wire, level, kind, version=version)).error_code == code, (level, kind)
            await ask(wire, 1, SAFE, dry=False, version=version)
            raised = await ask(wire, 2, SAFE, version=version)
            assert raised.error_code == invalid
            assert "Can't downgrade to a newer version." in raised.error_message
            lowered = await ask(wire, 0, UPGRADE, version=version)
            assert "without setting the upgrade type to either safe or unsafe downgrade" in lowered.error_message


async def test_clients_go_by_the_level_in_use(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
        epochs = [(await admin.describe_features()).finalized_features_epoch]
        for level, kind in (
            (1, UpgradeType.SAFE_DOWNGRADE),
            (0, UpgradeType.UNSAFE_DOWNGRADE),
            (2, UpgradeType.UPGRADE),
        ):
            await admin.update_features({NAME: FeatureUpdate(level, kind)}, validate_only=True)
            await admin.update_features({NAME: FeatureUpdate(level, kind)})
            await until(lambda: level_of(admin), lambda found, level=level: found == level)
            epochs.append((await admin.describe_features()).finalized_features_epoch)
            name, seen = f"{topic}-{level}", []
            async with kclient.Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
                await producer.init_transactions()
                for _ in range(2):
                    async with producer.transaction():
                        await producer.send(topic, b"x")
                    described = await until(
                        lambda name=name: admin.describe_transactions([name]),
                        lambda found, name=name: found[name].state == "CompleteCommit",
                    )
                    seen.append(described[name].producer_epoch)
            assert seen[1] - seen[0] == (level == 2)
        assert all(epoch is not None for epoch in epochs)
        assert epochs == sorted(set(epochs))  # type: ignore[type-var]
        with pytest.raises(InvalidUpdateVersionError):
            await admin.update_features({NAME: FeatureUpdate(1)})


@pytest.mark.foreign
@pytest.mark.kafka
async def test_kafkas_own_command(bootstrap: str, topic: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    tools = JavaTools(KAFKA_4, tmp_path_factory.mktemp("tools"))

    async def run(*arguments: str, check: bool = True) -> str:
        call = ("--bootstrap-server", bootstrap, *arguments)
        return await anyio.to_thread.run_sync(lambda: tools.run(TOOL, *call, check=check))

    def told(printed: str) -> list[str]:
        (line,) = (line for line in printed.splitlines() if f"Feature: {NAME}" in line)
        return line.split()

    line = told(await run("describe"))
    assert line[2:8] == ["SupportedMinVersion:", "0", "SupportedMaxVersion:", "2", "FinalizedVersionLevel:", "2"]
    await run("downgrade", "--feature", f"{NAME}=1")
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await until(lambda: level_of(admin), lambda level: level == 1)
        refused = await run("upgrade", "--feature", f"{NAME}=3", check=False)
        assert "only support" in refused
        await run("upgrade", "--dry-run", "--feature", f"{NAME}=2")
        assert await level_of(admin) == 1
        await run("upgrade", "--feature", f"{NAME}=2")
        await until(lambda: level_of(admin), lambda level: level == 2)
        await run("disable", "--feature", NAME, "--unsafe")
        await until(lambda: level_of(admin), lambda level: level == 0)


@pytest.mark.foreign
@pytest.mark.kafka
async def test_javas_producer_goes_by_the_level_in_use(
    bootstrap: str, topic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With level 2 each of its transactions ends with another epoch, below that none does."""
    tools = JavaTools(KAFKA_4, tmp_path_factory.mktemp("tools"))
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
        for level, kind in ((1, UpgradeType.SAFE_DOWNGRADE), (2, UpgradeType.UPGRADE)):
            await admin.update_features({NAME: FeatureUpdate(level, kind)})
            await until(lambda: level_of(admin), lambda found, level=level: found == level)
            name = f"{topic}-{level}"
            call = (
                "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", "500",
                "--record-size", "10", "--throughput", "1000", "--transactional-id", name,
                "--transaction-duration-ms", "50", "--producer-props", f"bootstrap.servers={bootstrap}",
            )  # fmt: skip
            await anyio.to_thread.run_sync(lambda call=call: tools.run(*call))
            described = (await admin.describe_transactions([name]))[name]
            assert (described.producer_epoch > 1) is (level == 2), described
        ends = await admin.list_offsets({(topic, 0): OffsetSpec.LATEST})
        assert all(found is not None and found.offset > 1000 for found in ends.values())
