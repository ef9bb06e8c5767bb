"""SCRAM credentials of users, as the admin client's calls take and give them (KIP-554)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias

from kclient.arguments import check_text, shown
from kclient.config.secret import Secret, check_encodable
from kclient.errors import ConfigError

MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16384
"""Kafka's brokers refuse fewer, and more."""
_SALT_BYTES = 24
_SALT_LIMIT = 1024


class ScramMechanism(IntEnum):
    """The mechanisms, numbered as in the protocol."""

    UNKNOWN = 0
    """A broker named one that this release does not know."""
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @classmethod
    def of(cls, number: int) -> ScramMechanism:
        """The mechanism of a number."""
        return cls(number) if number in cls._value2member_map_ else cls.UNKNOWN

    def __str__(self) -> str:
        return self.name.replace("_", "-")


_ALGORITHMS = {ScramMechanism.SCRAM_SHA_256: "sha256", ScramMechanism.SCRAM_SHA_512: "sha512"}


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """What brokers tell of a credential.

    Attributes:
        mechanism: for which it is.
        iterations: how costly guessing the password is made.
    """

    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredentialUpsertion:
    """A credential that is to be there: a user's password for one mechanism.

    Brokers get it salted and hashed, never as it is; it is hashed in a thread when the call is made.

    Attributes:
        user: the name that the user logs in with, as `alice` (principals are `User:alice`).
        mechanism: for which; each has a credential of its own.
        password: not empty; a text becomes a `Secret`, which nothing shows.
        iterations: 4096 to 16384.
        salt: random bytes; None makes 24.

    Raises:
        TypeError: an attribute is of another type.
        ValueError: one cannot be.
    """

    user: str
    mechanism: ScramMechanism
    password: Secret | str = field(repr=False)
    iterations: int = MIN_ITERATIONS
    salt: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check(self.user, self.mechanism)
        if not isinstance(self.password, str | Secret):
            raise TypeError(f"a password is text or a Secret, not of type {type(self.password).__name__}")
        object.__setattr__(self, "password", Secret(self.password))
        if not self.password:
            raise ValueError(f"the password of {shown(self.user)} is empty")
        try:
            check_encodable("a password", Secret(self.password))
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if isinstance(self.iterations, bool) or not isinstance(self.iterations, int):
            raise TypeError(f"iterations is a number, not {shown(self.iterations)}")
        if not MIN_ITERATIONS <= self.iterations <= MAX_ITERATIONS:
            raise ValueError(f"iterations is {MIN_ITERATIONS} to {MAX_ITERATIONS}, not {shown(self.iterations)}")
        if self.salt is not None and not isinstance(self.salt, bytes):
            raise TypeError(f"a salt is bytes, not of type {type(self.salt).__name__}")
        if self.salt is not None and not 0 < len(self.salt) <= _SALT_LIMIT:
            raise ValueError(f"a salt has 1 to {_SALT_LIMIT} bytes, not {len(self.salt)}")

    def salted(self) -> tuple[bytes, bytes]:
        """The salt, and the password hashed with it (RFC 5802, `SaltedPassword`). It takes some milliseconds."""
        salt = secrets.token_bytes(_SALT_BYTES) if self.salt is None else self.salt
        text = Secret(self.password).reveal().encode()
        return salt, hashlib.pbkdf2_hmac(_ALGORITHMS[self.mechanism], text, salt, self.iterations)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredentialDeletion:
    """A credential that is to go.

    Attributes:
        user: whose.
        mechanism: for which.

    Raises:
        TypeError: an attribute is of another type.
        ValueError: one cannot be.
    """

    user: str
    mechanism: ScramMechanism

    def __post_init__(self) -> None:
        _check(self.user, self.mechanism)


UserScramCredentialAlteration: TypeAlias = UserScramCredentialUpsertion | UserScramCredentialDeletion


def _check(user: object, mechanism: object) -> None:
    check_text(user, "the name of a user")
    if not user:
        raise ValueError("the name of a user is not empty")
    if not isinstance(mechanism, ScramMechanism):
        raise TypeError(f"the mechanism is a kclient.admin.ScramMechanism, as SCRAM_SHA_512, not {shown(mechanism)}")
    if mechanism not in _ALGORITHMS:
        raise ValueError("the mechanism is SCRAM_SHA_256 or SCRAM_SHA_512, not UNKNOWN")


def as_alterations(
    alterations: Any,
) -> dict[str, list[UserScramCredentialAlteration]]:
    """What is to be changed, by user.

    Raises:
        TypeError: these are no alterations.
        ValueError: two are about one credential.
    """
    kinds = (UserScramCredentialUpsertion, UserScramCredentialDeletion)
    expected = "alter_user_scram_credentials takes UserScramCredentialUpsertion and UserScramCredentialDeletion objects"
    if isinstance(alterations, str | bytes) or not isinstance(alterations, Iterable):
        raise TypeError(f"{expected}, in a list, not {shown(alterations)}")
    found: dict[str, list[UserScramCredentialAlteration]] = {}
    for each in alterations:
        if not isinstance(each, kinds):
            raise TypeError(f"{expected}; {shown(each)} is of type {type(each).__name__}")
        of_user = found.setdefault(each.user, [])
        if any(other.mechanism is each.mechanism for other in of_user):
            raise ValueError(f"there are two alterations of {each.mechanism} of the user {shown(each.user)}")
        of_user.append(each)
    return found
