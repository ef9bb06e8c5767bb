"""What the settings of a gateway say about who may do what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kclient.errors import ConfigError
from kclient.gateway.security.acl_authorizer import AclAuthorizer

if TYPE_CHECKING:
    from kclient.gateway.config import BrokerConfig

CLASS: Final = "authorizer.class.name"
_SUPER_USERS: Final = "super.users"
_ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"


def authorizer_of(config: BrokerConfig) -> AclAuthorizer | None:
    """Who decides; None where everybody may do everything.

    Raises:
        ConfigError: There are settings of an authorizer, and none is chosen.
    """
    if not config.get_text(CLASS):
        for name in (_SUPER_USERS, _ALLOW_EVERYONE):
            if config.given(name):
                raise ConfigError(
                    f"{name} is set, and {CLASS} is not, so everybody may do everything: set {CLASS}=acls"
                )
        return None
    users = [each.strip() for each in config.get_text(_SUPER_USERS).split(";")]
    return AclAuthorizer([each for each in users if each], allow_everyone=config.get_bool(_ALLOW_EVERYONE))
