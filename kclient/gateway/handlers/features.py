"""UpdateFeatures: the levels of the cluster's features (KIP-584)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from kclient.acls import AclOperation
from kclient.errors import InvalidRequestError, InvalidUpdateVersionError, KafkaError
from kclient.gateway.error_codes import Role, put_error
from kclient.gateway.features import FeatureChange, LevelChange
from kclient.gateway.handlers.handler import Finish, Handler, VersionRange
from kclient.protocol.messages.quorum import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import RequestContext
    from kclient.gateway.feature_levels import FeatureLevels

_KINDS_SINCE: Final = 1
"""From this version on a request tells what kind of downgrade it wants, before only whether it wants one."""
_TOGETHER_SINCE: Final = 2
"""From this version on the answer has one error for all of them (KIP-1022)."""
_MOST: Final = 1000


class UpdateFeaturesHandler(Handler):
    """Answers UpdateFeatures."""

    API: ClassVar[ApiKey] = ApiKey.UPDATE_FEATURES
    VERSIONS: ClassVar[VersionRange] = (0, 2)
    ROLE: ClassVar[Role] = Role.CONTROLLER

    def __init__(self, access: Access, levels: FeatureLevels) -> None:
        self._access = access
        self._levels = levels

    def begin(self, request: UpdateFeaturesRequest, context: RequestContext) -> Finish:
        """Changing waits for the manager."""
        self._access.check_cluster(context.connection, AclOperation.ALTER)
        updates = request.feature_updates
        if len(updates) > _MOST:
            raise InvalidRequestError(f"{len(updates)} features are more than there are")
        if len({update.feature for update in updates}) < len(updates):
            raise InvalidRequestError("The request names a feature more than once.")
        return partial(self._finish, request, context.api_version)

    async def _finish(self, request: UpdateFeaturesRequest, version: int) -> UpdateFeaturesResponse:
        response = UpdateFeaturesResponse(error_message=None)
        changes = [
            FeatureChange(update.feature, update.max_version_level, _kind(update, version))
            for update in request.feature_updates
        ]
        try:
            await self._levels.update(changes, validate_only=request.validate_only)
        except InvalidUpdateVersionError as error:
            put_error(response, error, self.ROLE)
            response.error_message = (
                f"The update failed for all features since the following feature had an error: {response.error_message}"
            )
            return response
        except KafkaError as error:
            put_error(response, error, self.ROLE)
            return response
        if version < _TOGETHER_SINCE:
            response.results = [UpdatableFeatureResult(feature=change.name, error_message=None) for change in changes]
        return response


def _kind(update: FeatureUpdateKey, version: int) -> int:
    if version >= _KINDS_SINCE:
        return update.upgrade_type
    return LevelChange.SAFE_DOWNGRADE if update.allow_downgrade else LevelChange.UPGRADE
