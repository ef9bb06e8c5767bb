"""The base of every exception of kclient, and the families that say what the caller can do."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from kclient.errors._codes import ErrorCode

BY_CODE: dict[int, type[KafkaError]] = {}
"""The class of each error code of the Kafka protocol; filled as the classes are defined."""


class KafkaError(Exception):
    """Base of every exception that kclient raises on purpose.

    The flags are attributes of the class; an instance may override them.

    Args:
        message: What happened and what helps. Without it, the text is the description of the class.
        retriable: Overrides the class's `retriable` for this instance.
        fatal: Overrides the class's `fatal` for this instance.
    """

    code: int | None = None
    """Error code of the Kafka protocol, or None for an error that arose in the client."""
    retriable: bool = False
    """Whether the same operation may succeed if it is tried again."""
    refresh_metadata: bool = False
    """Whether cluster metadata are out of date and must be fetched again before a retry."""
    fatal: bool = False
    """Whether the client object that raised it cannot go on and has to be closed."""
    results: Mapping[Any, Any] = MappingProxyType({})
    """What a call of the admin client about several things would have returned of those that did not fail; empty for
    other calls."""

    _text: ClassVar[str] = "A Kafka operation failed."

    def __init_subclass__(cls, code: int | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # python -OO strips docstrings; the name of the class has to do then
        cls._text = " ".join((cls.__doc__ or cls.__name__).split("\n\n")[0].split())
        if code is not None:
            cls.code = code
            BY_CODE[code] = cls

    def __init__(self, message: str | None = None, *, retriable: bool | None = None, fatal: bool | None = None) -> None:
        super().__init__(message)
        self.message: str = message or self._text
        if retriable is not None:
            self.retriable = retriable
        if fatal is not None:
            self.fatal = fatal

    @property
    def code_name(self) -> str:
        """Kafka's constant name of the error code, or the name of the class if it has no code."""
        if self.code is None:
            return type(self).__name__
        try:
            return ErrorCode(self.code).name
        except ValueError:
            return f"UNKNOWN_CODE_{self.code}"

    def __str__(self) -> str:
        return self.message if self.code is None else f"{self.message} [{self.code_name}]"


class RetriableError(KafkaError):
    """The operation failed for a reason that passes: trying again may succeed."""

    retriable = True


class InvalidMetadataError(RetriableError):
    """The client's view of the cluster is out of date: refresh the metadata, then try again."""

    refresh_metadata = True


class RefreshCoordinatorError(RetriableError):
    """The coordinator moved or is not there yet: look it up again, then try again."""


class ApplicationRecoverableError(KafkaError):
    """This member or producer was replaced or forgotten by the cluster; a new one can take over."""


class InvalidConfigurationError(KafkaError, code=40):
    """A request or a setting is not valid; trying again without a change does not help."""


class AuthenticationError(InvalidConfigurationError):
    """The broker did not accept who we are."""

    code: int | None = None
    fatal = True


class AuthorizationError(InvalidConfigurationError):
    """The principal is not allowed to do this; an administrator has to grant it (ACLs)."""

    code: int | None = None


class InvalidOffsetError(KafkaError):
    """An offset does not exist (any more), or none is known."""


class KafkaTimeoutError(RetriableError, TimeoutError):
    """The operation did not finish in its time; trying again may succeed."""
