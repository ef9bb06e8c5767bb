"""`kclient tokens`: delegation tokens made, listed, renewed and expired."""

from __future__ import annotations

from collections.abc import Sequence

from kclient.admin import DelegationToken
from kclient.cli import output
from kclient.cli.sheets import Sheet, check_form, document, moment, sheet_of
from kclient.errors import DelegationTokenNotFoundError
from kclient.sync import Admin

_COLUMNS = ["id", "owner", "requester", "renewers", "issued", "expires", "at the latest"]


def listed(admin: Admin, owners: Sequence[str]) -> Sheet:
    """The tokens that this user may see, without their HMACs."""
    rows = [_fields(token) for token in admin.describe_delegation_tokens(owners or None)]
    return sheet_of(f"{len(rows)} delegation tokens", _COLUMNS, rows, "tokens")


def create(
    settings: dict[str, object], *, owner: str | None, renewers: Sequence[str], max_lifetime: int | None, form: str
) -> int:
    """Make a token, and print it with its HMAC."""
    check_form(form)
    with Admin(settings) as admin:
        token = admin.create_delegation_token(owner=owner, renewers=renewers, max_lifetime_ms=max_lifetime)
    fields = {**_fields(token), "hmac": token.hmac.reveal()}
    if form != "table":
        output.line(document(fields, form))
    else:  # no table: nothing in it may be broken, it is to be copied
        for name, value in fields.items():
            output.line(f"{name}\t{' '.join(value) if isinstance(value, list) else value}")
    output.note("the HMAC is the token's password; it is not shown again")
    return 0


def renew(token_id: str, settings: dict[str, object], *, period: int | None) -> int:
    """Have a token end later."""
    with Admin(settings) as admin:
        ends = admin.renew_delegation_token(_found(admin, token_id).hmac, renew_period_ms=period)
    output.note(f"{token_id} expires at {moment(ends)}")
    return 0


def expire(token_id: str, settings: dict[str, object], *, period: int | None) -> int:
    """Have a token end sooner, or now."""
    with Admin(settings) as admin:
        ends = admin.expire_delegation_token(_found(admin, token_id).hmac, expiry_period_ms=period)
    output.note(f"{token_id} {'has expired' if period is None else f'expires at {moment(ends)}'}")
    return 0


def _found(admin: Admin, token_id: str) -> DelegationToken:
    for token in admin.describe_delegation_tokens():
        if token.token_id == token_id:
            return token
    raise DelegationTokenNotFoundError(f"No delegation token that this user may see has the id {token_id!r}")


def _fields(token: DelegationToken) -> dict[str, object]:
    return {
        "id": token.token_id,
        "owner": token.owner,
        "requester": token.token_requester,
        "renewers": list(token.renewers),
        "issued": moment(token.issue_timestamp),
        "expires": moment(token.expiry_timestamp),
        "at the latest": moment(token.max_timestamp),
    }
