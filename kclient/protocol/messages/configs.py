"""Configurations of topics, brokers and other resources."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, INT8, INT16, INT32, STRING

__all__ = [
    "AlterConfigsRequest",
    "AlterConfigsRequestConfig",
    "AlterConfigsRequestResource",
    "AlterConfigsResponse",
    "AlterConfigsResponseResource",
    "ConfigResource",
    "DescribeConfigsRequest",
    "DescribeConfigsResource",
    "DescribeConfigsResourceResult",
    "DescribeConfigsResponse",
    "DescribeConfigsResult",
    "DescribeConfigsSynonym",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsRequestConfig",
    "IncrementalAlterConfigsRequestResource",
    "IncrementalAlterConfigsResponse",
    "IncrementalAlterConfigsResponseResource",
    "ListConfigResourcesRequest",
    "ListConfigResourcesResponse",
]


class DescribeConfigsResource(Message):
    """One of the `resources` of a `DescribeConfigsRequest`."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configuration_keys: list[str] | None = field(ArrayOf(STRING), nullable="0+")


class DescribeConfigsRequest(ApiMessage, api_key=32, versions="0-4", flexible="4+"):
    """Asks for configurations of resources; null keys mean all.

    v1 can ask for synonyms, that is where else a value could come from (KIP-226); v3 for documentation.
    """

    resources: list[DescribeConfigsResource] = field(ArrayOf(DescribeConfigsResource))
    include_synonyms: bool = field(BOOL, "1+")
    include_documentation: bool = field(BOOL, "3+")


class DescribeConfigsSynonym(Message):
    """One of the `synonyms` of a `DescribeConfigsResourceResult`."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="1+")
    source: int = field(INT8)


class DescribeConfigsResourceResult(Message):
    """One of the `configs` of a `DescribeConfigsResult`."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")
    read_only: bool = field(BOOL)
    is_default: bool = field(BOOL, "0")
    config_source: int = field(INT8, "1+", default=-1, ignorable=True)
    is_sensitive: bool = field(BOOL)
    synonyms: list[DescribeConfigsSynonym] = field(ArrayOf(DescribeConfigsSynonym), "1+", ignorable=True)
    config_type: int = field(INT8, "3+", ignorable=True)
    documentation: str | None = field(STRING, "3+", nullable="3+", ignorable=True)


class DescribeConfigsResult(Message):
    """One of the `results` of a `DescribeConfigsResponse`."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: list[DescribeConfigsResourceResult] = field(ArrayOf(DescribeConfigsResourceResult))


class DescribeConfigsResponse(ApiMessage, api_key=32, versions="0-4", flexible="4+"):
    """Configurations with their sources. v0 only says whether a value is the default; v3 adds types and
    documentation.
    """

    throttle_time_ms: int = field(INT32)
    results: list[DescribeConfigsResult] = field(ArrayOf(DescribeConfigsResult))


class AlterConfigsRequestConfig(Message):
    """One of the `configs` of a `AlterConfigsRequestResource`."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+", sensitive=True)


class AlterConfigsRequestResource(Message):
    """One of the `resources` of a `AlterConfigsRequest`."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: list[AlterConfigsRequestConfig] = field(ArrayOf(AlterConfigsRequestConfig))


class AlterConfigsRequest(ApiMessage, api_key=33, versions="0-2", flexible="2+"):
    """Replaces the whole dynamic configuration of resources: what is not named returns to its default.

    IncrementalAlterConfigs changes single values.
    """

    resources: list[AlterConfigsRequestResource] = field(ArrayOf(AlterConfigsRequestResource))
    validate_only: bool = field(BOOL)


class AlterConfigsResponseResource(Message):
    """One of the `responses` of a `AlterConfigsResponse`."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)


class AlterConfigsResponse(ApiMessage, api_key=33, versions="0-2", flexible="2+"):
    """Whether it worked, for each resource."""

    throttle_time_ms: int = field(INT32)
    responses: list[AlterConfigsResponseResource] = field(ArrayOf(AlterConfigsResponseResource))


class IncrementalAlterConfigsRequestConfig(Message):
    """One of the `configs` of a `IncrementalAlterConfigsRequestResource`."""

    name: str = field(STRING)
    config_operation: int = field(INT8)
    value: str | None = field(STRING, nullable="0+", sensitive=True)


class IncrementalAlterConfigsRequestResource(Message):
    """One of the `resources` of a `IncrementalAlterConfigsRequest`."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: list[IncrementalAlterConfigsRequestConfig] = field(ArrayOf(IncrementalAlterConfigsRequestConfig))


class IncrementalAlterConfigsRequest(ApiMessage, api_key=44, versions="0-1", flexible="1+"):
    """Changes single configuration values: sets (0), deletes (1), appends to (2) or subtracts from lists
    (3) (KIP-339).
    """

    resources: list[IncrementalAlterConfigsRequestResource] = field(ArrayOf(IncrementalAlterConfigsRequestResource))
    validate_only: bool = field(BOOL)


class IncrementalAlterConfigsResponseResource(Message):
    """One of the `responses` of a `IncrementalAlterConfigsResponse`."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)


class IncrementalAlterConfigsResponse(ApiMessage, api_key=44, versions="0-1", flexible="1+"):
    """Whether it worked, for each resource."""

    throttle_time_ms: int = field(INT32)
    responses: list[IncrementalAlterConfigsResponseResource] = field(ArrayOf(IncrementalAlterConfigsResponseResource))


class ListConfigResourcesRequest(ApiMessage, api_key=74, versions="0-1", flexible="0+"):
    """Lists resources that have a configuration of their own.

    v0 lists client metrics resources only and was called ListClientMetricsResources; v1 lists any types
    (KIP-1142).
    """

    resource_types: list[int] = field(ArrayOf(INT8), "1+")


class ConfigResource(Message):
    """One of the `config_resources` of a `ListConfigResourcesResponse`."""

    resource_name: str = field(STRING)
    resource_type: int = field(INT8, "1+", default=16, ignorable=True)


class ListConfigResourcesResponse(ApiMessage, api_key=74, versions="0-1", flexible="0+"):
    """The resources; v1 adds their types."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    config_resources: list[ConfigResource] = field(ArrayOf(ConfigResource))
