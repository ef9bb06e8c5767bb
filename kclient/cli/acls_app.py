"""The commands of `kclient acls` and their options; their work is in `acls.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from kclient.cli.asking import admin_of
from kclient.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Command, Config, Output

acls_app: typer.Typer = typer.Typer(help="Look into access control lists, and change them.", no_args_is_help=True)

_Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="On this topic; * for all.")]
_Groups = Annotated[list[str] | None, typer.Option("--group", metavar="ID", help="On this group.")]
_TransactionalIds = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="ID", help="On this transactional id.")
]
_Tokens = Annotated[list[str] | None, typer.Option("--delegation-token", metavar="ID", help="On this token.")]
_Users = Annotated[list[str] | None, typer.Option("--user-principal", metavar="USER", help="On this user's tokens.")]
_OfCluster = Annotated[bool, typer.Option("--cluster", help="On the cluster.")]
_Allow = Annotated[list[str] | None, typer.Option("--allow", metavar="USER", help="Who may, as User:alice.")]
_Deny = Annotated[list[str] | None, typer.Option("--deny", metavar="USER", help="Who may not, as User:bob.")]
_Operations = Annotated[
    list[str] | None, typer.Option("--operation", metavar="NAME", help="What, as read or describe-configs.")
]
_Hosts = Annotated[list[str] | None, typer.Option("--host", metavar="ADDRESS", help="From which address.")]
_Patterns = Annotated[
    str,
    typer.Option(
        "--pattern", metavar="any|match|literal|prefixed",
        help="How entries are found by these names: match also finds prefixes of them, and *.",
    ),
]  # fmt: skip
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show which.")]


@acls_app.command("list", cls=Command)
def acls_list(
    topics: _Topics = None,
    groups: _Groups = None,
    transactional_ids: _TransactionalIds = None,
    tokens: _Tokens = None,
    users: _Users = None,
    cluster: _OfCluster = False,
    allow: _Allow = None,
    deny: _Deny = None,
    operations: _Operations = None,
    hosts: _Hosts = None,
    pattern: _Patterns = "any",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    form: Output = "table",
    config: Config = None,
) -> int:
    """Show entries, all of them or those that fit."""
    from kclient.cli import acls, sheets

    resources = acls.Resources(topics or [], groups or [], transactional_ids or [], tokens or [], users or [], cluster)
    filters = acls.filters_of(resources, acls.Rights(allow or [], deny or [], operations or [], hosts or []), pattern)
    return sheets.show(lambda admin: acls.listed(admin, filters), admin_of(bootstrap, config), form=form)


@acls_app.command("add", cls=Command)
def acls_add(
    topics: _Topics = None,
    groups: _Groups = None,
    transactional_ids: _TransactionalIds = None,
    tokens: _Tokens = None,
    users: _Users = None,
    cluster: _OfCluster = False,
    allow: _Allow = None,
    deny: _Deny = None,
    operations: _Operations = None,
    hosts: _Hosts = None,
    prefixed: Annotated[bool, typer.Option("--prefixed", help="On all whose names begin so.")] = False,
    producer: Annotated[bool, typer.Option("--producer", help="All that producers need.")] = False,
    consumer: Annotated[bool, typer.Option("--consumer", help="All that consumers need.")] = False,
    idempotent: Annotated[bool, typer.Option("--idempotent", help="With --producer: also before Kafka 3.0.")] = False,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Add entries: each principal, each operation, each resource, each host."""
    from kclient.cli import acls

    resources = acls.Resources(topics or [], groups or [], transactional_ids or [], tokens or [], users or [], cluster)
    bindings = acls.bindings_of(
        resources, acls.Rights(allow or [], deny or [], operations or [], hosts or []), prefixed=prefixed,
        producer=producer, consumer=consumer, idempotent=idempotent,
    )  # fmt: skip
    return acls.add(bindings, admin_of(bootstrap, config), dry_run=dry_run)


@acls_app.command("remove", cls=Command)
def acls_remove(
    topics: _Topics = None,
    groups: _Groups = None,
    transactional_ids: _TransactionalIds = None,
    tokens: _Tokens = None,
    users: _Users = None,
    cluster: _OfCluster = False,
    allow: _Allow = None,
    deny: _Deny = None,
    operations: _Operations = None,
    hosts: _Hosts = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern",
            metavar="any|match|literal|prefixed",
            help="How entries are found by these names; literal by default, with --all any.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Remove the entries that fit all options."""
    from kclient.cli import acls

    resources = acls.Resources(topics or [], groups or [], transactional_ids or [], tokens or [], users or [], cluster)
    rights = acls.Rights(allow or [], deny or [], operations or [], hosts or [])
    filters = acls.filters_of(resources, rights, pattern or ("any" if everything else "literal"))
    return acls.remove(filters, admin_of(bootstrap, config), everything=everything, dry_run=dry_run)
