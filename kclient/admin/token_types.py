"""Delegation tokens, as the admin client's calls take and give them (KIP-48, KIP-373)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kclient.arguments import INT64_MAX, check_text, shown, whole_number
from kclient.config.secret import Secret

Principal: TypeAlias = tuple[str, str]
"""Type and name, as the protocol has them."""

_HMAC_LIMIT = 32_767


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A credential with a limited life that its owner can hand to others.

    Who has its id and its HMAC logs in as its owner: by SCRAM, with `sasl_username=token.token_id`,
    `sasl_password=token.hmac` and `sasl_tokenauth=True`. It cannot be pickled, since the HMAC would be readable then.

    Attributes:
        token_id: its name, which is no secret.
        hmac: its password: base64 text as Java's `hmacAsBase64String`, in a `Secret` that nothing shows;
            `token.hmac.reveal()` is the text.
        owner: whom it stands for, as `User:alice`.
        token_requester: who asked for it, as `User:alice`; the owner before Kafka 3.3.
        renewers: who may renew and expire it, beside these two.
        issue_timestamp: when it was made, in milliseconds since 1970.
        expiry_timestamp: when it ends unless it is renewed, in milliseconds since 1970.
        max_timestamp: when it ends however often it is renewed, in milliseconds since 1970.
    """

    token_id: str
    hmac: Secret = field(repr=False)
    owner: str
    token_requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    expiry_timestamp: int
    max_timestamp: int


def hmac_text(data: bytes) -> Secret:
    """An HMAC as SCRAM takes it for a password."""
    return Secret(base64.b64encode(data).decode())


def as_hmac(value: Any) -> bytes:
    """The bytes of an HMAC. No error shows what was given.

    Raises:
        TypeError: this is neither text nor a `Secret`.
        ValueError: it is not base64, or empty.
    """
    if not isinstance(value, str | Secret):
        raise TypeError(f"an HMAC is base64 text, as `DelegationToken.hmac` is, not of type {type(value).__name__}")
    try:
        found = base64.b64decode(Secret(value).reveal(), validate=True)
    except (binascii.Error, ValueError):  # the latter for what is not ASCII
        found = b""
    if not 0 < len(found) <= _HMAC_LIMIT:
        raise ValueError("this HMAC is not base64 text as `DelegationToken.hmac` is (it is not shown)")
    return found


def principal_text(kind: str, name: str) -> str:
    """A principal as one text."""
    return f"{kind}:{name}"


def as_principal(value: Any, what: str) -> Principal:
    """A principal's type and name.

    Args:
        value: what the user gave.
        what: what it is, as the start of the error's sentence: `the owner of a token`, say.

    Raises:
        TypeError: this is no text.
        ValueError: it is not of that form, or cannot be sent.
    """
    check_text(value, what)
    kind, _, name = value.partition(":")
    if not kind or not name:
        raise ValueError(f"{what} is a principal, as User:alice, not {shown(value)}")
    return kind, name


def as_principals(values: Any, what: str) -> list[Principal]:
    """Principals, each once.

    Args:
        values: what the user gave.
        what: what they are, as the start of the error's sentence: `owners`, say.

    Raises:
        TypeError: these are no texts in a list.
        ValueError: one is none.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{what} are principals in a list, as ['User:alice'], not {shown(values)}")
    return list(dict.fromkeys(as_principal(each, f"one of the {what}") for each in values))


def as_period(value: Any, what: str, least: int) -> int:
    """Milliseconds; −1, which leaves it to the broker, for None.

    Raises:
        TypeError: this is no whole number.
        ValueError: it is less than `least`, or too large.
    """
    if value is None:
        return -1
    if not least <= (period := whole_number(value, what)) <= INT64_MAX:
        raise ValueError(f"{what} is milliseconds, from {least} to {INT64_MAX}, or None; not {shown(value)}")
    return period
