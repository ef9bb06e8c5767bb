"""The commands of `kclient tokens` and their options; their work is in `tokens.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from kclient.cli.asking import admin_of
from kclient.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Command, Config, Output

tokens_app: typer.Typer = typer.Typer(help="Make and end delegation tokens.", no_args_is_help=True)

_Id = Annotated[str, typer.Argument(metavar="ID")]


@tokens_app.command("create", cls=Command)
def tokens_create(
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="USER", help="Whom it stands for, as User:alice; you by default.")
    ] = None,
    renewers: Annotated[
        list[str] | None, typer.Option("--renewer", metavar="USER", help="Who may renew it, as User:bob.")
    ] = None,
    max_lifetime: Annotated[
        int | None,
        typer.Option("--max-lifetime", min=1, metavar="MS", help="How long it can last; the brokers' by default."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    form: Output = "table",
    config: Config = None,
) -> int:
    """Make a token, and print its id and its HMAC, which are name and password for SCRAM."""
    from kclient.cli import tokens as work

    return work.create(
        admin_of(bootstrap, config), owner=owner, renewers=renewers or [], max_lifetime=max_lifetime, form=form
    )


@tokens_app.command("list", cls=Command)
def tokens_list(
    owners: Annotated[
        list[str] | None, typer.Argument(metavar="USER", help="Only those that these own or may renew.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    form: Output = "table",
    config: Config = None,
) -> int:
    """Show the tokens that you may see, without their HMACs."""
    from kclient.cli import sheets
    from kclient.cli import tokens as work

    names = list(dict.fromkeys(owners or []))
    return sheets.show(lambda admin: work.listed(admin, names), admin_of(bootstrap, config), form=form)


@tokens_app.command("renew", cls=Command)
def tokens_renew(
    token_id: _Id,
    period: Annotated[
        int | None,
        typer.Option("--renew-period", min=1, metavar="MS", help="It ends in so long; the brokers' by default."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Have a token end later."""
    from kclient.cli import tokens as work

    return work.renew(token_id, admin_of(bootstrap, config), period=period)


@tokens_app.command("expire", cls=Command)
def tokens_expire(
    token_id: _Id,
    period: Annotated[
        int | None, typer.Option("--expiry-period", min=0, metavar="MS", help="It ends in so long; now by default.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Have a token end now, or soon."""
    from kclient.cli import tokens as work

    return work.expire(token_id, admin_of(bootstrap, config), period=period)
