"""Settings of what older and newer brokers tell: kinds, sources and types that this release does not know."""

from __future__ import annotations

from typing import Any

import pytest

from kclient.admin import (
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
)
from kclient.errors import (
    BrokerIdNotRegisteredError,
    ClusterAuthorizationError,
    ErrorCode,
    UnknownServerError,
    UnsupportedVersionError,
)
from kclient.protocol.messages import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kclient.protocol.messages.configs import ConfigResource as ListedResource
from kclient.protocol.registry import ApiKey
from tests.fake_kafka import FakeKafka
from tests.unit.admin.scripted import KRAFT, VERSIONS, administering

pytestmark = pytest.mark.anyio

CONFIGS = {ApiKey.DESCRIBE_CONFIGS: (1, 4), ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1)}
METRICS, GROUP = ConfigResourceType.CLIENT_METRICS, ConfigResourceType.GROUP


def scripted(kafka: FakeKafka, entry: DescribeConfigsResourceResult) -> list[tuple[int, int, Any]]:
    """Brokers that give each resource this one setting; who was asked for what, and which names."""
    asked: list[tuple[int, int, Any]] = []

    def describe(broker: Any, request: Any) -> DescribeConfigsResponse:
        results = []
        for each in request.resources:
            asked.append((broker.node_id, each.resource_type, each.configuration_keys))
            results.append(
                DescribeConfigsResult(
                    resource_type=each.resource_type, resource_name=each.resource_name, configs=[entry]
                )
            )
        return DescribeConfigsResponse(results=results)

    kafka.scripts[ApiKey.DESCRIBE_CONFIGS] = describe
    return asked


async def test_numbers_that_are_not_known() -> None:
    entry = DescribeConfigsResourceResult(
        name="a", value="1", config_source=99, config_type=98,
        synonyms=[DescribeConfigsSynonym(name="b", value=None, source=97)],
    )  # fmt: skip
    topic = ConfigResource(ConfigResourceType.TOPIC, "t")
    async with FakeKafka(versions={**VERSIONS, **CONFIGS}) as kafka, administering(kafka) as admin:
        scripted(kafka, entry)
        found = (await admin.describe_configs([topic]))[topic]["a"]
    synonym = ConfigSynonym("b", None, ConfigSource.UNKNOWN)
    assert found == ConfigEntry("a", "1", ConfigSource.UNKNOWN, False, False, ConfigType.UNKNOWN, (synonym,))
    assert ConfigResourceType(64) is ConfigResourceType.UNKNOWN
    with pytest.raises(ValueError, match="not a valid"):
        ConfigResourceType("topic")  # type: ignore[arg-type]


async def test_a_kind_that_is_not_known_is_not_asked_for() -> None:
    async with FakeKafka(versions={**VERSIONS, **CONFIGS}) as kafka, administering(kafka) as admin:
        unknown = ConfigResource(ConfigResourceType.UNKNOWN, "x")
        with pytest.raises(ValueError, match="is UNKNOWN: a newer release"):
            await admin.describe_configs([unknown])
        with pytest.raises(ValueError, match="is UNKNOWN"):
            await admin.alter_configs({unknown: {"a": "b"}})
        with pytest.raises(ValueError, match="is UNKNOWN"):
            await admin.list_config_resources([ConfigResourceType.UNKNOWN])
        with pytest.raises(TypeError, match="types are given in a list"):
            await admin.list_config_resources(GROUP)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="is a ConfigResourceType, not 'group'"):
            await admin.list_config_resources(["group"])  # type: ignore[list-item]


async def test_loggers_are_those_of_a_broker() -> None:
    entry = DescribeConfigsResourceResult(name="root", value="INFO", config_source=6)
    loggers = [ConfigResource(ConfigResourceType.BROKER_LOGGER, str(node)) for node in (2, 3)]
    versions = {**VERSIONS, **KRAFT, **CONFIGS}
    altered: list[tuple[int, str]] = []

    def alter(broker: Any, request: Any) -> IncrementalAlterConfigsResponse:
        (each,) = request.resources
        altered.append((broker.node_id, each.resource_name))
        row = IncrementalAlterConfigsResponseResource(
            resource_type=each.resource_type, resource_name=each.resource_name, error_message=None
        )
        return IncrementalAlterConfigsResponse(responses=[row])

    async with FakeKafka(brokers=3, versions=versions) as kafka, administering(kafka) as admin:
        asked = scripted(kafka, entry)
        kafka.scripts[ApiKey.INCREMENTAL_ALTER_CONFIGS] = alter
        found = await admin.describe_configs(loggers, names=["root"])
        assert {each: entries["root"].value for each, entries in found.items()} == dict.fromkeys(loggers, "INFO")
        assert sorted(asked) == [(2, 8, ["root"]), (3, 8, ["root"])]
        await admin.alter_configs({each: {"root": "DEBUG"} for each in loggers})
        assert sorted(altered) == [(2, "2"), (3, "3")]
        with pytest.raises(BrokerIdNotRegisteredError, match="it has: 1, 2, 3"):
            await admin.describe_configs([ConfigResource(ConfigResourceType.BROKER_LOGGER, "9")])
        for name in ("", "x", "-1"):
            with pytest.raises(ValueError, match="the loggers of a broker are named by its id"):
                await admin.describe_configs([ConfigResource(ConfigResourceType.BROKER_LOGGER, name)])


async def test_an_old_broker_has_no_documentation() -> None:
    versions = {**VERSIONS, ApiKey.DESCRIBE_CONFIGS: (0, 2)}
    topic = ConfigResource(ConfigResourceType.TOPIC, "t")
    async with FakeKafka(versions=versions) as kafka, administering(kafka) as admin:
        scripted(kafka, DescribeConfigsResourceResult(name="a", value="1", config_source=5))
        assert (await admin.describe_configs([topic], include_synonyms=True))[topic]["a"].type is ConfigType.UNKNOWN
        with pytest.raises(UnsupportedVersionError, match="include_documentation"):
            await admin.describe_configs([topic], include_documentation=True)


@pytest.mark.parametrize("newest", [0, 1])
async def test_resources_of_older_and_newer_brokers(newest: int) -> None:
    requests: list[ListConfigResourcesRequest] = []

    def told(broker: Any, request: Any) -> ListConfigResourcesResponse:
        requests.append(request)
        rows = [("b", 16), ("a", 16)] if newest == 0 else [("b", 64), ("b", 32), ("a", 16)]
        return ListConfigResourcesResponse(
            config_resources=[ListedResource(resource_name=name, resource_type=kind) for name, kind in rows]
        )

    versions = {**VERSIONS, ApiKey.LIST_CONFIG_RESOURCES: (0, newest)}
    async with FakeKafka(versions=versions) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.LIST_CONFIG_RESOURCES] = told
        if newest == 0:
            for types in (None, [GROUP], [GROUP, METRICS]):
                with pytest.raises(UnsupportedVersionError, match=r"lists client metrics only \(Kafka 4\.1"):
                    await admin.list_config_resources(types)
            found = await admin.list_config_resources([METRICS, METRICS])
            assert found == [ConfigResource(METRICS, "a"), ConfigResource(METRICS, "b")]
        else:
            found = await admin.list_config_resources()
            unknown = ConfigResource(ConfigResourceType.UNKNOWN, "b")
            assert found == [unknown, ConfigResource(METRICS, "a"), ConfigResource(GROUP, "b")]
            await admin.list_config_resources([GROUP, METRICS, GROUP])
            assert [request.resource_types for request in requests] == [[], [32, 16]]


async def test_who_may_not_describe_the_cluster_is_told() -> None:
    versions = {**VERSIONS, ApiKey.LIST_CONFIG_RESOURCES: (0, 1)}
    async with FakeKafka(versions=versions) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.LIST_CONFIG_RESOURCES] = lambda *_: ListConfigResourcesResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        )
        with pytest.raises(ClusterAuthorizationError):
            await admin.list_config_resources()


async def test_what_an_answer_leaves_out_is_told() -> None:
    topic = ConfigResource(ConfigResourceType.TOPIC, "t")
    async with FakeKafka(versions={**VERSIONS, **CONFIGS}) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.DESCRIBE_CONFIGS] = lambda *_: DescribeConfigsResponse(results=[])
        with pytest.raises(UnknownServerError, match="Topic 't': the broker's answer does not tell of it"):
            await admin.describe_configs([topic])
