"""Every exception of kclient: one base, the families that say what helps, one class per Kafka error code.

Catch by what you can do about it: `RetriableError` (try again), `AuthorizationError` (ask for a permission),
`AuthenticationError`, `ConfigError` (change a setting), `BrokerConnectionError` (nobody answers),
`KafkaTimeoutError` (also a `TimeoutError`), or `KafkaError` for all. Each carries `code`, `retriable`,
`refresh_metadata` and `fatal`.
"""

from __future__ import annotations

from kclient.errors._base import (
    BY_CODE as _BY_CODE,
)
from kclient.errors._base import (
    ApplicationRecoverableError as ApplicationRecoverableError,
)
from kclient.errors._base import (
    AuthenticationError as AuthenticationError,
)
from kclient.errors._base import (
    AuthorizationError as AuthorizationError,
)
from kclient.errors._base import (
    InvalidConfigurationError as InvalidConfigurationError,
)
from kclient.errors._base import (
    InvalidMetadataError as InvalidMetadataError,
)
from kclient.errors._base import (
    InvalidOffsetError as InvalidOffsetError,
)
from kclient.errors._base import (
    KafkaError as KafkaError,
)
from kclient.errors._base import (
    KafkaTimeoutError as KafkaTimeoutError,
)
from kclient.errors._base import (
    RefreshCoordinatorError as RefreshCoordinatorError,
)
from kclient.errors._base import (
    RetriableError as RetriableError,
)
from kclient.errors._broker import *  # noqa: F403  (both list their names in __all__)
from kclient.errors._codes import ErrorCode as ErrorCode
from kclient.errors._local import *  # noqa: F403


class UnknownKafkaCodeError(KafkaError):
    """The broker sent an error code that kclient does not know (yet).

    Args:
        message: What the broker said, if it said anything.
        code: The number that the broker sent.
    """

    def __init__(self, message: str | None = None, *, code: int = -1) -> None:
        super().__init__(message or f"The broker answered with error code {code}, unknown to kclient")
        self.code: int | None = code


def error_class(code: int) -> type[KafkaError]:
    """The exception class of a Kafka error code; `UnknownKafkaCodeError` for codes that are not known."""
    return _BY_CODE.get(code, UnknownKafkaCodeError)


def error_for(code: int, message: str | None = None) -> KafkaError:
    """The exception for an error code that a broker sent.

    Args:
        code: The error code; not 0, which means success.
        message: What the broker or the caller has to say; else the description of the code.

    Raises:
        ValueError: If `code` is 0.
    """
    if code == ErrorCode.NONE:
        raise ValueError("error code 0 (NONE) means success: there is no exception for it")
    known = _BY_CODE.get(code)
    return UnknownKafkaCodeError(message, code=code) if known is None else known(message)
