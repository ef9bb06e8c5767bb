"""The commands of `kclient quotas` and their options; their work is in `quotas.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from kclient.cli.asking import admin_of
from kclient.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Command, Config, Output

quotas_app: typer.Typer = typer.Typer(help="Say how much clients may use.", no_args_is_help=True)

_User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="This user's.")]
_DefaultUser = Annotated[bool, typer.Option("--default-user", help="Of users without one of their own.")]
_ClientId = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="This client id's.")]
_DefaultClientId = Annotated[bool, typer.Option("--default-client-id", help="Of client ids without one of their own.")]
_Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="This address's.")]
_DefaultIp = Annotated[bool, typer.Option("--default-ip", help="Of addresses without one of their own.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check whether it could be done.")]


@quotas_app.command("list", cls=Command)
def quotas_list(
    user: _User = None,
    default_user: _DefaultUser = False,
    client_id: _ClientId = None,
    default_client_id: _DefaultClientId = False,
    ip: _Ip = None,
    default_ip: _DefaultIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    form: Output = "table",
    config: Config = None,
) -> int:
    """Show quotas, all of them or those that fit."""
    from kclient.cli import quotas, sheets

    wanted = quotas.QuotaOwner(user, default_user, client_id, default_client_id, ip, default_ip).filter()
    return sheets.show(lambda admin: quotas.listed(admin, wanted), admin_of(bootstrap, config), form=form)


@quotas_app.command("set", cls=Command)
def quotas_set(
    values: Annotated[list[str], typer.Argument(metavar="NAME=NUMBER", help="As producer_byte_rate=1048576.")],
    user: _User = None,
    default_user: _DefaultUser = False,
    client_id: _ClientId = None,
    default_client_id: _DefaultClientId = False,
    ip: _Ip = None,
    default_ip: _DefaultIp = False,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Set quotas; the others stay."""
    from kclient.cli import quotas

    owner = quotas.QuotaOwner(user, default_user, client_id, default_client_id, ip, default_ip)
    return quotas.put(owner, values, admin_of(bootstrap, config), dry_run=dry_run)


@quotas_app.command("remove", cls=Command)
def quotas_remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="As producer_byte_rate.")],
    user: _User = None,
    default_user: _DefaultUser = False,
    client_id: _ClientId = None,
    default_client_id: _DefaultClientId = False,
    ip: _Ip = None,
    default_ip: _DefaultIp = False,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Remove quotas."""
    from kclient.cli import quotas

    owner = quotas.QuotaOwner(user, default_user, client_id, default_client_id, ip, default_ip)
    return quotas.remove(owner, names, admin_of(bootstrap, config), dry_run=dry_run)
