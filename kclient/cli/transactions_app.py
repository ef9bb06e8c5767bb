"""The commands of `kclient transactions` and their options; their work is in `transactions.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from kclient.cli.asking import admin_of
from kclient.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Command, Config, Output

transactions_app: typer.Typer = typer.Typer(
    help="Look into transactions, and end those that hang.", no_args_is_help=True
)

_Ids = Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL_ID")]


@transactions_app.command("list", cls=Command)
def transactions_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    states: Annotated[list[str] | None, typer.Option("--state", metavar="STATE", help="Only such, as Ongoing.")] = None,
    producer_ids: Annotated[
        list[int] | None, typer.Option("--producer-id", min=0, metavar="ID", help="Only those of such producers.")
    ] = None,
    longer_than: Annotated[
        int | None, typer.Option("--longer-than", min=0, metavar="MS", help="Only those open for longer.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="RE2", help="Only ids that match, as a whole.")
    ] = None,
    form: Output = "table",
    config: Config = None,
) -> int:
    """Show transactional ids and the states of their transactions."""
    from kclient.cli import sheets, transactions

    wanted = transactions.check_states(states or [])
    return sheets.show(
        lambda admin: transactions.listed(
            admin, states=wanted, producer_ids=producer_ids or [], longer_than=longer_than, pattern=pattern
        ),
        admin_of(bootstrap, config),
        form=form,
    )


@transactions_app.command("describe", cls=Command)
def transactions_describe(
    names: _Ids, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, form: Output = "table", config: Config = None
) -> int:
    """Show the producer of transactional ids, and the partitions of the present transaction."""
    from kclient.cli import sheets, transactions

    return sheets.show(
        lambda admin: transactions.described(admin, list(dict.fromkeys(names))), admin_of(bootstrap, config), form=form
    )


@transactions_app.command("producers", cls=Command)
def transactions_producers(
    places: Annotated[list[str], typer.Argument(metavar="TOPIC[:PARTITION]")],
    broker: Annotated[
        int | None, typer.Option("--broker", min=0, metavar="ID", help="Ask this one; the leaders by default.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    form: Output = "table",
    config: Config = None,
) -> int:
    """Show the producers that partitions remember, and where their open transactions begin."""
    from kclient.cli import sheets, transactions

    return sheets.show(
        lambda admin: transactions.producers(admin, places, broker=broker), admin_of(bootstrap, config), form=form
    )


@transactions_app.command("find-hanging", cls=Command)
def transactions_find_hanging(
    places: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC[:PARTITION]", help="Where to look; everywhere by default.")
    ] = None,
    max_timeout: Annotated[
        int, typer.Option("--max-timeout", min=0, metavar="MS", help="The brokers' transaction.max.timeout.ms.")
    ] = 900_000,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    form: Output = "table",
    config: Config = None,
) -> int:
    """Show open transactions that no coordinator is ever going to end."""
    from kclient.cli import sheets, transactions

    return sheets.show(
        lambda admin: transactions.hanging(admin, places or [], max_timeout=max_timeout),
        admin_of(bootstrap, config),
        form=form,
    )


@transactions_app.command("abort", cls=Command)
def transactions_abort(
    place: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION")],
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", min=0, metavar="OFFSET", help="Where the transaction begins.")
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", min=0, metavar="ID", help="Or whose it is:")
    ] = None,
    producer_epoch: Annotated[
        int | None, typer.Option("--producer-epoch", min=0, metavar="EPOCH", help="its epoch,")
    ] = None,
    coordinator_epoch: Annotated[
        int | None, typer.Option("--coordinator-epoch", min=0, metavar="EPOCH", help="and its coordinator's.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """End an open transaction of a partition that hangs: its records are never read as committed."""
    from kclient.cli import transactions

    return transactions.abort(
        place, admin_of(bootstrap, config), start_offset=start_offset, producer_id=producer_id,
        producer_epoch=producer_epoch, coordinator_epoch=coordinator_epoch,
    )  # fmt: skip


@transactions_app.command("fence", cls=Command)
def transactions_fence(names: _Ids, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, config: Config = None) -> int:
    """Shut out the producers that use transactional ids now, and abort their transactions, prepared ones too."""
    from kclient.cli import transactions

    return transactions.fence(names, admin_of(bootstrap, config))
