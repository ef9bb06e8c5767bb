"""The features of the cluster: which levels are in use, and changing them (KIP-584)."""

from __future__ import annotations

from collections.abc import Mapping

from kclient.admin.answers import check_code
from kclient.admin.arguments import as_broker_id
from kclient.admin.base import AdminBase
from kclient.admin.feature_types import (
    FeatureMetadata,
    FeatureUpdate,
    FinalizedVersionRange,
    SupportedVersionRange,
    UpgradeType,
    as_feature_updates,
)
from kclient.cluster import Trial, version_for
from kclient.errors import UnsupportedVersionError
from kclient.net.connection import Connection
from kclient.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kclient.version import __version__

_KINDS_VERSION = 1


class FeatureOperations(AdminBase):
    """The admin client's calls about features."""

    async def describe_features(self, *, broker_id: int | None = None, timeout: float | None = None) -> FeatureMetadata:
        """The features of the cluster, and which levels a broker can do (KIP-584; Kafka 2.7).

        Args:
            broker_id: the broker to ask; the default is any, since all say the same of what is in use.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Returns:
            The levels in use and those that the broker supports; brokers before Kafka 2.7 know none.

        Raises:
            BrokerIdNotRegisteredError: there is no broker of this id.
            TypeError: the broker's id is no number.
        """
        node_id = None if broker_id is None else as_broker_id(broker_id)
        request = ApiVersionsRequest(client_software_name="kclient", client_software_version=__version__)
        answer = await self._ask_node(node_id, request, ApiVersionsResponse, timeout, "Describing features")
        check_code(answer.error_code, "The features of the cluster")
        epoch = answer.finalized_features_epoch
        return FeatureMetadata(
            {
                each.name: FinalizedVersionRange(each.min_version_level, each.max_version_level)
                for each in sorted(answer.finalized_features, key=lambda each: each.name)
            },
            epoch if epoch >= 0 else None,
            {
                each.name: SupportedVersionRange(each.min_version, each.max_version)
                for each in sorted(answer.supported_features, key=lambda each: each.name)
            },
        )

    async def update_features(
        self, updates: Mapping[str, FeatureUpdate], *, validate_only: bool = False, timeout: float | None = None
    ) -> None:
        """Changes the levels of features, all of them or none (KIP-584; Kafka 2.7).

        Brokers and clients learn of it a moment later, clients by their next connection.

        Args:
            updates: the level of each feature, by name.
            validate_only: only check whether it could be done (Kafka 3.3).
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            InvalidUpdateVersionError: a level cannot be, or is lower than now and was not asked for as a downgrade.
            ClusterAuthorizationError: this user may not.
            UnsupportedVersionError: the brokers are too old for the call, `validate_only` or an unsafe downgrade.
            TypeError: these are not `FeatureUpdate`s by name.
            ValueError: there are none.
        """
        wanted = as_feature_updates(updates)
        milliseconds, what = self._milliseconds(timeout), "Updating features"

        def message(connection: Connection) -> UpdateFeaturesRequest:
            rows = [
                FeatureUpdateKey(feature=name, max_version_level=each.max_version_level)
                for name, each in wanted.items()
            ]
            if version_for(connection, UpdateFeaturesRequest) >= _KINDS_VERSION:
                for row in rows:
                    row.upgrade_type = wanted[row.feature].upgrade_type
            else:
                unsafe = any(each.upgrade_type is UpgradeType.UNSAFE_DOWNGRADE for each in wanted.values())
                if validate_only or unsafe:
                    asked = "validate_only" if validate_only else "UNSAFE_DOWNGRADE"
                    raise UnsupportedVersionError(f"{connection.address} knows no {asked} (Kafka 3.3 does)")
                for row in rows:
                    row.allow_downgrade = wanted[row.feature].upgrade_type is UpgradeType.SAFE_DOWNGRADE
            return UpdateFeaturesRequest(feature_updates=rows, timeout_ms=milliseconds, validate_only=validate_only)

        async def ask(trial: Trial) -> None:
            response = await self._ask_controller(trial, message, UpdateFeaturesResponse, timeout)
            check_code(response.error_code, what, response.error_message)
            for row in response.results:
                check_code(row.error_code, f"Feature {row.feature}", row.error_message)

        await self._retrying(ask, timeout, what)
