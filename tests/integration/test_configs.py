"""Settings of brokers' loggers, groups and client metrics by the admin client and `kclient configs`."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
import pytest

from kclient.admin import (
    Admin,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    NewTopic,
    PartialFailureError,
)
from kclient.cli.app import run
from kclient.errors import (
    BrokerIdNotRegisteredError,
    InvalidConfigurationError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from tests.kafka_server import KafkaServer
from tests.wire_session import until

pytestmark = [pytest.mark.anyio, pytest.mark.kafka]

LOGGERS = ConfigResource(ConfigResourceType.BROKER_LOGGER, "1")


@pytest.fixture
async def admin(kafka: KafkaServer) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=kafka.bootstrap) as found:
        yield found


@pytest.fixture
async def admin3(kafka3: KafkaServer) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=kafka3.bootstrap) as found:
        yield found


@pytest.fixture
def name() -> str:
    return f"configs-{uuid.uuid4().hex[:8]}"


async def values(admin: Admin, resource: ConfigResource, *names: str) -> dict[str, str | None]:
    found = await admin.describe_configs([resource], names=names or None)
    return {name: entry.value for name, entry in found[resource].items()}


async def comes_to(admin: Admin, resource: ConfigResource, expected: dict[str, str | None]) -> None:
    """Brokers learn of changes a moment after the controller."""
    await until(lambda: values(admin, resource, *expected), lambda found: found == expected)


async def test_loggers_of_a_broker(admin: Admin) -> None:
    await set_read_and_removed(admin, "org.apache.kafka.server.logger.LoggingController")


async def test_loggers_of_an_older_broker(admin3: Admin) -> None:
    await set_read_and_removed(admin3, "org.apache.kafka.common.utils.AppInfoParser")


async def set_read_and_removed(admin: Admin, logger: str) -> None:
    before = (await admin.describe_configs([LOGGERS]))[LOGGERS]
    level = before["root"].value
    assert (before[logger].value, before[logger].type) == (level, ConfigType.UNKNOWN)
    assert {entry.source for entry in before.values()} == {ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG}
    await admin.alter_configs({LOGGERS: {logger: "ERROR"}}, validate_only=True)
    assert await values(admin, LOGGERS, logger) == {logger: level}
    await admin.alter_configs({LOGGERS: {logger: "ERROR"}})
    assert await values(admin, LOGGERS, logger) == {logger: "ERROR"}
    await admin.alter_configs({LOGGERS: {logger: None}})
    assert await values(admin, LOGGERS, logger) == {logger: level}
    with pytest.raises(InvalidConfigurationError, match="LOUD"):
        await admin.alter_configs({LOGGERS: {logger: "LOUD"}})
    with pytest.raises(InvalidConfigurationError, match=r"Broker logger '1': .* does not exist"):
        await admin.alter_configs({LOGGERS: {"no.such": "DEBUG"}})
    with pytest.raises(InvalidRequestError, match="root logger"):
        await admin.alter_configs({LOGGERS: {"root": None}})
    with pytest.raises(InvalidRequestError, match="APPEND"):
        await admin.alter_configs({LOGGERS: {logger: (ConfigOperation.APPEND, "DEBUG")}})


async def test_loggers_belong_to_one_broker(admin: Admin) -> None:
    with pytest.raises(BrokerIdNotRegisteredError, match="the id 99 now"):
        await admin.describe_configs([ConfigResource(ConfigResourceType.BROKER_LOGGER, "99")])
    with pytest.raises(ValueError, match="the loggers of a broker are named by its id"):
        await admin.describe_configs([ConfigResource(ConfigResourceType.BROKER_LOGGER, "")])


async def test_settings_of_a_group(admin: Admin, name: str) -> None:
    group, setting = ConfigResource(ConfigResourceType.GROUP, name), "consumer.session.timeout.ms"
    before = (await admin.describe_configs([group]))[group][setting]
    assert (before.value, before.source, before.type) == ("45000", ConfigSource.DEFAULT_CONFIG, ConfigType.INT)
    await admin.alter_configs({group: {setting: "50000"}})
    await comes_to(admin, group, {setting: "50000"})
    after = (await admin.describe_configs([group], include_synonyms=True))[group][setting]
    assert after.source is ConfigSource.DYNAMIC_GROUP_CONFIG
    assert after.synonyms[0] == ConfigSynonym(setting, "50000", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert group in await admin.list_config_resources([ConfigResourceType.GROUP])
    with pytest.raises(InvalidConfigurationError):
        await admin.alter_configs({group: {setting: "1"}})
    await admin.alter_configs({group: {setting: None}})
    await comes_to(admin, group, {setting: "45000"})


async def test_client_metrics(admin: Admin, name: str) -> None:
    await subscribed_to(admin, name)


async def test_client_metrics_of_an_older_broker(admin3: Admin, name: str) -> None:
    await subscribed_to(admin3, name)


async def subscribed_to(admin: Admin, name: str) -> None:
    subscription = ConfigResource(ConfigResourceType.CLIENT_METRICS, name)
    await admin.alter_configs({subscription: {"interval.ms": "60000", "metrics": "org.apache.kafka.producer."}})
    listed = await until(
        lambda: admin.list_config_resources([ConfigResourceType.CLIENT_METRICS]), lambda found: subscription in found
    )
    assert {each.type for each in listed} == {ConfigResourceType.CLIENT_METRICS}
    await comes_to(admin, subscription, {"interval.ms": "60000", "metrics": "org.apache.kafka.producer."})
    found = (await admin.describe_configs([subscription]))[subscription]
    assert found["interval.ms"].source is ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
    await admin.alter_configs({subscription: {"interval.ms": None, "metrics": None}})
    with pytest.raises(InvalidRequestError):
        await admin.alter_configs({subscription: {"interval.ms": "1"}})


async def test_only_some_settings_with_all_that_is_known_of_them(admin: Admin, name: str) -> None:
    await admin.create_topics([NewTopic(name, 1, 1, {"retention.ms": "1000"})])
    topic = ConfigResource(ConfigResourceType.TOPIC, name)

    async def described(**more: Any) -> Any:
        names = ["retention.ms", "segment.bytes", "no.such"]
        return (await admin.describe_configs([topic], names=names, **more))[topic]

    await until(admin.list_topics, lambda found: name in {each.name for each in found})
    plain = await until(described, lambda found: found["retention.ms"].value == "1000")
    assert (sorted(plain), plain["retention.ms"].type) == (["retention.ms", "segment.bytes"], ConfigType.LONG)
    assert (plain["retention.ms"].synonyms, plain["retention.ms"].documentation) == ((), None)
    told = await described(include_synonyms=True, include_documentation=True)
    assert "retention" in told["retention.ms"].documentation
    assert told["retention.ms"].synonyms == (ConfigSynonym("retention.ms", "1000", ConfigSource.DYNAMIC_TOPIC_CONFIG),)
    default = ConfigSynonym("log.segment.bytes", "1073741824", ConfigSource.DEFAULT_CONFIG)
    assert told["segment.bytes"].synonyms == (default,)
    assert (await admin.describe_configs([topic], names=[]))[topic] == {}


async def test_what_has_settings(admin: Admin, name: str) -> None:
    await admin.create_topics([NewTopic(name, 1, 1)])
    topic, broker = ConfigResource(ConfigResourceType.TOPIC, name), ConfigResource(ConfigResourceType.BROKER, "1")
    everything = await until(admin.list_config_resources, lambda found: topic in found)
    assert {topic, broker, LOGGERS} <= set(everything)
    assert everything == sorted(everything, key=lambda each: (each.type, each.name))
    assert await admin.list_config_resources([ConfigResourceType.BROKER_LOGGER]) == [LOGGERS]
    assert await admin.list_config_resources([]) == []


async def test_what_an_older_broker_has(admin3: Admin) -> None:
    """It lists client metrics only."""
    with pytest.raises(UnsupportedVersionError, match=r"client metrics only \(Kafka 4\.1 lists"):
        await admin3.list_config_resources()
    with pytest.raises(UnsupportedVersionError, match=r"Kafka 4\.1"):
        await admin3.list_config_resources([ConfigResourceType.GROUP])
    group = ConfigResource(ConfigResourceType.GROUP, "some")
    with pytest.raises(InvalidRequestError, match=r"Group 'some': .*settings of groups since Kafka 4\.0"):
        await admin3.describe_configs([group])
    with pytest.raises(InvalidRequestError, match="Unknown resource type 32"):
        await admin3.alter_configs({group: {"consumer.session.timeout.ms": "50000"}})


async def test_several_that_cannot_be_described(admin: Admin, name: str) -> None:
    missing = ConfigResource(ConfigResourceType.TOPIC, name)
    with pytest.raises(UnknownTopicOrPartitionError):
        await admin.describe_configs([missing, LOGGERS])
    with pytest.raises(PartialFailureError) as caught:
        await admin.describe_configs([missing, ConfigResource(ConfigResourceType.TOPIC, f"{name}-too")])
    assert set(caught.value.failures) == {f"Topic '{name}'", f"Topic '{name}-too'"}


async def test_those_of_a_group_at_a_gateway(gateway: str, name: str) -> None:
    async with Admin(bootstrap_servers=gateway) as admin:
        group, setting = ConfigResource(ConfigResourceType.GROUP, name), "consumer.session.timeout.ms"
        before = (await admin.describe_configs([group]))[group][setting]
        assert (before.value, before.source, before.type) == ("45000", ConfigSource.DEFAULT_CONFIG, ConfigType.INT)
        await admin.alter_configs({group: {setting: "50000"}})
        after = (await admin.describe_configs([group], include_synonyms=True))[group][setting]
        assert after.source is ConfigSource.DYNAMIC_GROUP_CONFIG
        assert after.synonyms[0] == ConfigSynonym(setting, "50000", ConfigSource.DYNAMIC_GROUP_CONFIG)
        with pytest.raises(InvalidConfigurationError):
            await admin.alter_configs({group: {setting: "1"}})
        await admin.alter_configs({group: {setting: None}})
        assert (await admin.describe_configs([group]))[group][setting].value == "45000"


async def test_a_gateway_has_those_of_topics_and_its_own(gateway: str) -> None:
    async with Admin(bootstrap_servers=gateway) as admin:
        (node,) = (await admin.describe_cluster()).nodes
        own = ConfigResource(ConfigResourceType.BROKER, str(node.id))
        entry = (
            await admin.describe_configs(
                [own], names=["num.partitions"], include_synonyms=True, include_documentation=True
            )
        )[own]["num.partitions"]
        assert (entry.value, entry.type) == ("4", ConfigType.INT)
        assert entry.documentation
        assert entry.synonyms[0].value == "4"
        loggers = ConfigResource(ConfigResourceType.BROKER_LOGGER, str(node.id))
        with pytest.raises(InvalidRequestError, match="a gateway has no resources of type"):
            await admin.describe_configs([loggers])
        with pytest.raises(InvalidRequestError, match="a gateway has no resources of type"):
            await admin.alter_configs({loggers: {"x": "1"}})


async def test_a_gateway_lists_what_has_settings(gateway: str, name: str) -> None:
    group, topic = ConfigResource(ConfigResourceType.GROUP, name), ConfigResource(ConfigResourceType.TOPIC, name)
    async with Admin(bootstrap_servers=gateway) as admin:
        await admin.create_topic(name, 1)
        assert group not in await admin.list_config_resources()
        await admin.alter_configs({group: {"consumer.session.timeout.ms": "50000"}})
        (node,) = (await admin.describe_cluster()).nodes
        broker = ConfigResource(ConfigResourceType.BROKER, str(node.id))
        assert {group, topic, broker} <= set(await admin.list_config_resources())
        assert await admin.list_config_resources([ConfigResourceType.BROKER]) == [broker]
        assert group in await admin.list_config_resources([ConfigResourceType.GROUP])
        kinds = [ConfigResourceType.BROKER_LOGGER, ConfigResourceType.CLIENT_METRICS]
        assert await admin.list_config_resources(kinds) == []
        await admin.alter_configs({group: {"consumer.session.timeout.ms": None}})
        assert group not in await admin.list_config_resources([ConfigResourceType.GROUP])


async def test_the_command(kafka: KafkaServer, admin: Admin, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def configs(*arguments: str) -> int:
        return await anyio.to_thread.run_sync(run, ["configs", *arguments, "--bootstrap", kafka.bootstrap])

    group = ConfigResource(ConfigResourceType.GROUP, name)
    setting = "consumer.session.timeout.ms"
    assert await configs("set", "--group", name, f"{setting}=50000") == 0
    assert await configs("set", "--group", name, f"{setting}=51000", "--dry-run") == 0
    await comes_to(admin, group, {setting: "50000"})
    capsys.readouterr()
    assert await configs("describe", "--group", name, "--synonyms", "--output", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)["settings"]
    assert row.pop("synonyms")[0] == f"DYNAMIC_GROUP_CONFIG:{setting}=50000"
    assert row == {
        "name": setting, "value": "50000", "source": "DYNAMIC_GROUP_CONFIG", "type": "INT", "read_only": False,
    }  # fmt: skip
    assert await configs("describe", "--group", name, "--all", "--documentation", "--output", "json") == 0
    assert len(json.loads(capsys.readouterr().out)["settings"]) > 1
    assert await configs("list", "--type", "group", "--output", "json") == 0
    assert {"type": "group", "name": name} in json.loads(capsys.readouterr().out)["resources"]
    assert await configs("remove", "--group", name, setting) == 0
    await comes_to(admin, group, {setting: "45000"})
    assert await configs("describe", "--broker-logger", "1", "root", "--output", "json") == 0
    assert json.loads(capsys.readouterr().out)["settings"][0]["value"] == "WARN"
    assert await configs("describe", "--broker", "1", "num.io.threads", "no.such") == 2
    assert "broker 1 has no setting 'no.such'" in capsys.readouterr().err
    assert await configs("describe", "--topic", name) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["describe"], "say whose settings, by one of --topic"),
        (["describe", "--topic", "a", "--broker", "1"], "say whose settings"),
        (["set", "--topic", "", "a=b"], "the name of a topic is not empty"),
        (["set", "--topic", "a", "retention.ms"], "takes NAME=VALUE"),
        (["list", "--type", "user"], "--type is one of topic, broker, broker-logger"),
        (["describe", "--topic", "a", "--output", "xml"], "--output is table, json or yaml"),
    ],
)
def test_what_cannot_be_is_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["configs", *arguments, "--bootstrap", "127.0.0.1:1"]) == 2
    assert told in capsys.readouterr().err
