"""`kclient quotas`: what clients may use, listed, set and removed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from kclient.admin import ClientQuotaEntity, ClientQuotaFilter, QuotaName
from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.cli.sheets import Sheet, sheet_of
from kclient.sync import Admin


@dataclass(frozen=True)
class QuotaOwner:
    """Whose quotas, as options name it: a name, or the default, of each kind.

    Attributes:
        user: a user's name.
        default_user: whether those without a quota of their own are meant.
        client_id: a client id.
        default_client_id: the same of client ids.
        ip: an address.
        default_ip: the same of addresses.
    """

    user: str | None = None
    default_user: bool = False
    client_id: str | None = None
    default_client_id: bool = False
    ip: str | None = None
    default_ip: bool = False

    def names(self) -> dict[str, str | QuotaName]:
        """By the kind of each.

        Raises:
            UsageError: A name and the default are given of one kind.
        """
        found: dict[str, str | QuotaName] = {}
        for kind in ("user", "client_id", "ip"):
            name, default = getattr(self, kind), getattr(self, f"default_{kind}")
            option = kind.replace("_", "-")
            if default and name is not None:
                raise UsageError(f"--{option} and --default-{option} exclude each other")
            if default:
                found[kind] = QuotaName.DEFAULT
            elif name is not None:
                found[kind] = name
        return found

    def entity(self) -> ClientQuotaEntity:
        """The one that is meant.

        Raises:
            UsageError: None is, or one that cannot be.
        """
        try:
            return ClientQuotaEntity(**self.names())
        except ValueError as error:
            raise UsageError(f"{error} (--user, --client-id, --ip, --default-user …)") from None

    def filter(self) -> ClientQuotaFilter:
        """Finds those that have these names, whatever others they have."""
        try:
            names = self.names()
            return ClientQuotaFilter(user=names.get("user"), client_id=names.get("client_id"), ip=names.get("ip"))
        except ValueError as error:
            raise UsageError(str(error)) from None


def listed(admin: Admin, wanted: ClientQuotaFilter) -> Sheet:
    """The quotas that there are."""
    rows = [
        {**{kind: _shown(getattr(entity, kind)) for kind in ("user", "client_id", "ip")}, "quota": name, "value": value}
        for entity, values in admin.describe_client_quotas(wanted).items()
        for name, value in values.items()
    ]
    return sheet_of(f"{len(rows)} quotas", ["user", "client_id", "ip", "quota", "value"], rows, "quotas")


def _shown(name: str | QuotaName | None) -> str | None:
    return name.value if isinstance(name, QuotaName) else name


def put(owner: QuotaOwner, texts: Sequence[str], settings: dict[str, object], *, dry_run: bool) -> int:
    """Set quotas (`NAME=NUMBER`)."""
    values: dict[str, float | None] = {}
    for text in texts:
        name, _, number = text.partition("=")
        value = _number(number)
        if not name or value is None:
            raise UsageError(f"a quota is given as NAME=NUMBER, as in producer_byte_rate=1048576, not {text!r}")
        if name in values:
            raise UsageError(f"{name} is given twice")
        values[name] = value
    return _alter(owner, values, settings, f"{', '.join(texts)} set", dry_run=dry_run)


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return None if "_" in text else float(text)  # which Python would read over
    return None


def remove(owner: QuotaOwner, names: Sequence[str], settings: dict[str, object], *, dry_run: bool) -> int:
    """Remove quotas."""
    return _alter(owner, dict.fromkeys(names), settings, f"{', '.join(names)} removed", dry_run=dry_run)


def _alter(
    owner: QuotaOwner, values: dict[str, float | None], settings: dict[str, object], done: str, *, dry_run: bool
) -> int:
    entity = owner.entity()
    try:
        with Admin(settings) as admin:
            admin.alter_client_quotas({entity: values}, validate_only=dry_run)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if dry_run:
        output.warn("nothing was changed: this is a dry run")
    output.note(f"{entity}: {done}")
    return 0
