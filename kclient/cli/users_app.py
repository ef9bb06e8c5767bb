"""The commands of `kclient users` and their options; their work is in `users.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kclient.cli.asking import admin_of
from kclient.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Command, Config, Output

users_app: typer.Typer = typer.Typer(help="Say who can log in by SCRAM.", no_args_is_help=True)

_User = Annotated[str, typer.Argument(metavar="USER")]


@users_app.command("list", cls=Command)
def users_list(
    users: Annotated[list[str] | None, typer.Argument(metavar="USER", help="Only these.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    form: Output = "table",
    config: Config = None,
) -> int:
    """Show users, and by which mechanisms they can log in."""
    from kclient.cli import sheets
    from kclient.cli import users as work

    names = list(dict.fromkeys(users or []))
    return sheets.show(lambda admin: work.listed(admin, names), admin_of(bootstrap, config), form=form)


@users_app.command("set", cls=Command)
def users_set(
    user: _User,
    mechanisms: Annotated[
        list[str] | None,
        typer.Option("--mechanism", metavar="NAME", help="For which; SCRAM-SHA-512 by default."),
    ] = None,
    iterations: Annotated[
        int, typer.Option("--iterations", metavar="N", help="How costly guessing is made, 4096 to 16384.")
    ] = 4096,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", metavar="FILE", help="Where the password stands.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Give a user a password, a new user or another password. It is asked for, or piped in."""
    from kclient.cli import users as work

    wanted = work.mechanisms_of(mechanisms or ["SCRAM-SHA-512"])
    return work.put(user, wanted, admin_of(bootstrap, config), file=password_file, iterations=iterations)


@users_app.command("remove", cls=Command)
def users_remove(
    user: _User,
    mechanisms: Annotated[
        list[str] | None, typer.Option("--mechanism", metavar="NAME", help="Only for these; all by default.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Take a user's credentials away."""
    from kclient.cli import users as work

    return work.remove(user, work.mechanisms_of(mechanisms or []), admin_of(bootstrap, config))
