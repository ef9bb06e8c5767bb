"""Every message of the Kafka protocol, grouped by family in the modules of this package.

All classes can be imported from here; a module is loaded when one of its classes is first asked for. A request or
response has the name that it has in Kafka. A struct inside a message has Kafka's name as well where only one message
has a struct of that name and it says enough; else the name of the message comes first: `FetchRequestTopic`,
`ShareFetchRequestTopic`, `LeaveGroupRequestMember`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kclient.protocol.messages import (
        acls,
        configs,
        connection,
        consumer_groups,
        consumer_protocol,
        fetch,
        groups,
        headers,
        metadata,
        offsets,
        produce,
        quorum,
        replicas,
        share,
        share_state,
        streams,
        telemetry,
        tokens,
        topics,
        transactions,
        users,
    )
    from kclient.protocol.messages.acls import *  # noqa: F403
    from kclient.protocol.messages.configs import *  # noqa: F403
    from kclient.protocol.messages.connection import *  # noqa: F403
    from kclient.protocol.messages.consumer_groups import *  # noqa: F403
    from kclient.protocol.messages.consumer_protocol import *  # noqa: F403
    from kclient.protocol.messages.fetch import *  # noqa: F403
    from kclient.protocol.messages.groups import *  # noqa: F403
    from kclient.protocol.messages.headers import *  # noqa: F403
    from kclient.protocol.messages.metadata import *  # noqa: F403
    from kclient.protocol.messages.offsets import *  # noqa: F403
    from kclient.protocol.messages.produce import *  # noqa: F403
    from kclient.protocol.messages.quorum import *  # noqa: F403
    from kclient.protocol.messages.replicas import *  # noqa: F403
    from kclient.protocol.messages.share import *  # noqa: F403
    from kclient.protocol.messages.share_state import *  # noqa: F403
    from kclient.protocol.messages.streams import *  # noqa: F403
    from kclient.protocol.messages.telemetry import *  # noqa: F403
    from kclient.protocol.messages.tokens import *  # noqa: F403
    from kclient.protocol.messages.topics import *  # noqa: F403
    from kclient.protocol.messages.transactions import *  # noqa: F403
    from kclient.protocol.messages.users import *  # noqa: F403

    __all__: list[str] = []
    __all__ += acls.__all__
    __all__ += configs.__all__
    __all__ += connection.__all__
    __all__ += consumer_groups.__all__
    __all__ += consumer_protocol.__all__
    __all__ += fetch.__all__
    __all__ += groups.__all__
    __all__ += headers.__all__
    __all__ += metadata.__all__
    __all__ += offsets.__all__
    __all__ += produce.__all__
    __all__ += quorum.__all__
    __all__ += replicas.__all__
    __all__ += share.__all__
    __all__ += share_state.__all__
    __all__ += streams.__all__
    __all__ += telemetry.__all__
    __all__ += tokens.__all__
    __all__ += topics.__all__
    __all__ += transactions.__all__
    __all__ += users.__all__

_FAMILIES = (
    "acls",
    "configs",
    "connection",
    "consumer_groups",
    "consumer_protocol",
    "fetch",
    "groups",
    "headers",
    "metadata",
    "offsets",
    "produce",
    "quorum",
    "replicas",
    "share",
    "share_state",
    "streams",
    "telemetry",
    "tokens",
    "topics",
    "transactions",
    "users",
)


if not TYPE_CHECKING:  # else the checkers would believe that every name exists

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            names = globals()["__all__"] = _names()
            return names
        for family in _FAMILIES:
            module = import_module(f"{__name__}.{family}")
            if name in module.__all__:
                value = getattr(module, name)
                globals()[name] = value
                return value
        raise AttributeError(f"{__name__} has no message {name}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return _names()


def _names() -> list[str]:
    """The names of all messages; this loads all modules."""
    return sorted(name for family in _FAMILIES for name in import_module(f"{__name__}.{family}").__all__)
