"""The commands and their options; each command's work is in a module of its own, imported when it runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from kclient.cli.acls_app import acls_app
from kclient.cli.asking import admin_of, at_the_end, client_of
from kclient.cli.configs_app import configs_app
from kclient.cli.errors import UsageError, guarded
from kclient.cli.migrate_app import migrate_app
from kclient.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Command, Config, Output
from kclient.cli.pipeline_app import pipeline_app
from kclient.cli.quotas_app import quotas_app
from kclient.cli.settings import PATIENCE_MS, parse_config
from kclient.cli.tokens_app import tokens_app
from kclient.cli.transactions_app import transactions_app
from kclient.cli.users_app import users_app

app: typer.Typer = typer.Typer(
    name="kclient",
    help="A Kafka client and a Kafka-compatible gateway over HTP.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
topics_app: typer.Typer = typer.Typer(help="List, create, delete, describe and alter topics.", no_args_is_help=True)
groups_app: typer.Typer = typer.Typer(
    help="List, describe, reset and delete groups; their members.", no_args_is_help=True
)
cluster_app: typer.Typer = typer.Typer(help="Show who leads what, and move it.", no_args_is_help=True)
app.add_typer(topics_app, name="topics")
app.add_typer(groups_app, name="groups")
app.add_typer(cluster_app, name="cluster")
store_app: typer.Typer = typer.Typer(help="Look after a data directory.", no_args_is_help=True)
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(store_app, name="store")
app.add_typer(migrate_app, name="migrate")
app.add_typer(transactions_app, name="transactions")
app.add_typer(configs_app, name="configs")
app.add_typer(acls_app, name="acls")
app.add_typer(users_app, name="users")
app.add_typer(tokens_app, name="tokens")
app.add_typer(quotas_app, name="quotas")


def run(arguments: list[str]) -> int:
    """Run one command; returns the exit code. Errors become one sentence on standard error."""
    with at_the_end:
        return guarded(lambda: _command()(args=arguments, prog_name="kclient", standalone_mode=False))


@cache
def _command() -> Any:
    """What `app` makes of all functions and their options, which takes longer than most commands."""
    return get_command(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        from kclient import __version__

        typer.echo(f"kclient {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A Kafka client and a Kafka-compatible gateway over HTP."""


# ---- gateway and clients ------------------------------------------------------------------------------------


@app.command(cls=Command)
def gateway(
    data: Annotated[
        str | None, typer.Option("--data", metavar="DIR", help="Directory that holds everything. Has to be given.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Where to accept clients: 127.0.0.1:9092, unless `listeners` is set."
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="The address clients are told, if it is another."),
    ] = None,
    durability: Annotated[
        str, typer.Option("--durability", metavar="synced|written", help="When an append is acknowledged.")
    ] = "synced",
    mapping: Annotated[
        str, typer.Option("--mapping", metavar="domain|multilevel|virtual|broker", help="How new topics lie in HTP.")
    ] = "domain",
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            metavar="N",
            help="How many brokers HTP has: partitions of a topic at most, with --mapping broker. As before if unsaid.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Where to serve metrics to Prometheus, http://HOST:PORT/metrics. Nowhere if unsaid.",
        ),
    ] = None,
    health: Annotated[
        str | None,
        typer.Option(
            "--health",
            metavar="HOST:PORT",
            help="Where to answer /healthz and /readyz, which --metrics does, too. Nowhere else if unsaid.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE|NAME=VALUE",
            help="The server.properties of a Kafka broker, or a setting, which comes before the file's; any number of "
            "settings.",
        ),
    ] = None,
    log_level: Annotated[
        str,
        typer.Option(
            "--log-level",
            metavar="LEVEL",
            help="What to log on standard error: debug, info, warning, error or critical.",
        ),
    ] = "warning",
    log_format: Annotated[
        str,
        typer.Option("--log-format", metavar="text|json", help="How: lines of text, or a JSON object in each line."),
    ] = "text",
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            metavar="N",
            help="Serve with so many processes, each at the next port; one that ends is started again.",
        ),
    ] = None,
    add_user: Annotated[
        str | None,
        typer.Option(
            "--add-user",
            metavar="NAME",
            help="Let a user log in by SCRAM: the first one, who adds others by `kclient users`. The password is asked "
            "for, or piped in.",
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", metavar="FILE", help="The password of --add-user: the first line of a file."),
    ] = None,
) -> int:
    """Serve Kafka clients; messages are kept in embedded HTP under DIR."""
    from kclient.cli.gateway_options import GatewayOptions, GatewaySettings
    from kclient.cli.logs import complain_in

    complain_in(log_format)
    options = GatewayOptions(
        data=data,
        listen=listen,
        advertise=advertise,
        durability=durability,
        mapping=mapping,
        brokers=brokers,
        metrics=metrics,
        health=health,
        settings=GatewaySettings(config),
        log_level=log_level,
        log_format=log_format,
        add_user=add_user,
        password_file=password_file,
    )
    if processes is not None:
        from kclient.cli.processes import serve_processes

        return serve_processes(processes, options)
    from kclient.cli.gateway import serve

    return serve(options)


@app.command(cls=Command)
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Send JSON lines from standard input: objects with key, value, headers, timestamp and partition."""
    from kclient.cli.produce import produce as work

    own = ("key.serializer", "value.serializer")
    return work(topic, {"max.block.ms": PATIENCE_MS, **client_of(bootstrap, config, creates=True, refused=own)})


@app.command(cls=Command)
def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Where from.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", metavar="GROUP", help="Share the work with others, and commit what was written."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="NUMBER", help="Only this partition; may be given several times."),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="OFFSET",
            help="Where to begin: a number (below 0: so many before each partition's end), earliest or latest.",
        ),
    ] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Begin with the oldest record.")] = False,
    to_end: Annotated[bool, typer.Option("--to-end", help="Stop at the records that are there now.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, metavar="COUNT", help="Stop after so many records.")
    ] = None,
    config: Config = None,
) -> int:
    """Write records as JSON lines that `kclient produce` takes; without --from-beginning only new ones."""
    from kclient.cli.consume import consume as work

    own = ("key.deserializer", "value.deserializer")
    return work(
        topics, client_of(bootstrap, config, refused=own), group=group, partitions=partition or [], offset=offset,
        from_beginning=from_beginning, to_end=to_end, limit=limit,
    )  # fmt: skip


@app.command(cls=Command)
def info(
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap", "-b", envvar="KCLIENT_BOOTSTRAP_SERVERS", metavar="ADDRESS", help="Also ask this cluster."
        ),
    ] = None,
    config: Config = None,
) -> int:
    """Show versions, and the cluster if one is named."""
    from kclient.cli.info import info as work

    if bootstrap is None and config:
        raise UsageError("--config is for asking a cluster: name it with --bootstrap")
    return work(None if bootstrap is None else admin_of(bootstrap, config))


# ---- stores ------------------------------------------------------------------------------------------------


@store_app.callback()
def _stores() -> None:
    """Look after a data directory."""


@store_app.command("verify", cls=Command)
def store_verify(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The data directory; nothing in it is changed.")],
) -> int:
    """Read every message, index and row of DIR; 1 if something is damaged or missing."""
    from kclient.cli.store import verify

    return verify(directory)


@store_app.command("upgrade", cls=Command)
def store_upgrade(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The data directory, which no gateway uses.")],
) -> int:
    """Bring DIR from the format of an earlier version to this one's, as the next start of a gateway would.

    Versions that are older than this one do not open it any more: back it up before, if you may want to go back.
    """
    from kclient.cli.store import upgrade

    return upgrade(directory)


@store_app.command("backup", cls=Command)
def store_backup(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The data directory; a gateway may use it.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Where to: a directory that is empty, or new.")],
) -> int:
    """Copy DIR as it is at one moment to TO, also while a gateway goes on with it.

    All that was acknowledged before is in it. TO is a backup when the command has ended with 0; whatever breaks it off,
    nothing is left. Where messages of DIR are missing already it says so, keeps what is there, and ends with 1.
    """
    from kclient.cli.store import backup

    return backup(directory, target)


@store_app.command("restore", cls=Command)
def store_restore(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A backup; nothing in it is changed.")],
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The data directory: empty, or new.")],
) -> int:
    """Make a data directory of a backup; 1, and nothing is left, if a file of the backup is damaged or missing."""
    from kclient.cli.store import restore

    return restore(source, directory)


@store_app.command("dump", cls=Command)
def store_dump(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="The data directory, which no gateway uses; nothing in it is changed.")
    ],
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only what belongs to this topic.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object for each topic, row and message.")] = False,
) -> int:
    """Show what is in DIR: topics, rows, and the header of each record batch with what its checksum says."""
    from kclient.cli.dump import dump

    return dump(directory, topic, as_json=as_json)


# ---- topics -------------------------------------------------------------------------------------------------


@topics_app.command("list", cls=Command)
def topics_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    internal: Annotated[bool, typer.Option("--internal", help="Also Kafka's own topics.")] = False,
    config: Config = None,
) -> int:
    """List the topics."""
    from kclient.cli import topics

    return topics.list_topics(admin_of(bootstrap, config), internal=internal)


@topics_app.command("create", cls=Command)
def topics_create(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", metavar="COUNT", help="-1: the broker's default.")
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", metavar="COUNT", help="-1: the broker's default.")
    ] = -1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="NAME=VALUE", help="A setting of the topic.")
    ] = None,
    config: Config = None,
) -> int:
    """Create a topic."""
    from kclient.cli import topics

    return topics.create(
        name, admin_of(bootstrap, config, creates=True), partitions=partitions, replication_factor=replication_factor,
        configs=parse_config(settings, "--set"),
    )  # fmt: skip


@topics_app.command("delete", cls=Command)
def topics_delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Delete topics and everything in them."""
    from kclient.cli import topics

    return topics.delete(names, admin_of(bootstrap, config))


@topics_app.command("describe", cls=Command)
def topics_describe(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Show the partitions of topics, and the settings that were made."""
    from kclient.cli import topics

    return topics.describe(names, admin_of(bootstrap, config))


@topics_app.command("alter", cls=Command)
def topics_alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", metavar="COUNT", help="How many there shall be.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="NAME=VALUE", help="A setting of the topic.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", "-u", metavar="NAME", help="Back to the default.")
    ] = None,
    config: Config = None,
) -> int:
    """Give a topic more partitions, or other settings."""
    from kclient.cli import topics

    return topics.alter(
        name, admin_of(bootstrap, config), partitions=partitions, configs=parse_config(settings, "--set"),
        unset=unset or [],
    )  # fmt: skip


# ---- groups -------------------------------------------------------------------------------------------------


@groups_app.command("list", cls=Command)
def groups_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only these, such as Stable or Empty.")
    ] = None,
    config: Config = None,
) -> int:
    """List the groups."""
    from kclient.cli import groups

    return groups.list_groups(admin_of(bootstrap, config), states=state or [])


@groups_app.command("describe", cls=Command)
def groups_describe(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Show how far a group is behind, and who reads what."""
    from kclient.cli import groups

    return groups.describe(group, admin_of(bootstrap, config))


@groups_app.command("reset", cls=Command)
def groups_reset(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, metavar="OFFSET", help="To this offset.")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to-time", metavar="TIME", help="ISO 8601, or milliseconds since 1970.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:PARTITION]", help="Only these; else all that was committed."),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; else only show what would be done.")] = False,
    config: Config = None,
) -> int:
    """Move a group without members to other offsets; a dry run unless --execute."""
    from kclient.cli import groups

    return groups.reset(
        group, admin_of(bootstrap, config), earliest=to_earliest, latest=to_latest, offset=to_offset, time=to_time,
        topics=topic or [], execute=execute,
    )  # fmt: skip


@groups_app.command("members", cls=Command)
def groups_members(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    form: Output = "table",
    config: Config = None,
) -> int:
    """Show the members of a group, where they run, and what they are assigned."""
    from kclient.cli import groups, sheets

    return sheets.show(lambda admin: groups.members(admin, group), admin_of(bootstrap, config), form=form)


@groups_app.command("remove-members", cls=Command)
def groups_remove_members(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    instances: Annotated[
        list[str] | None,
        typer.Option("--instance", metavar="ID", help="The static member with this group.instance.id; any number."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All members, dynamic ones too.")] = False,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="For the coordinator's log.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Remove members that are gone from a group, which then balances without them."""
    from kclient.cli import groups

    return groups.remove_members(group, instances or [], admin_of(bootstrap, config), every=every, reason=reason)


@groups_app.command("delete", cls=Command)
def groups_delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Delete groups without members, and their offsets."""
    from kclient.cli import groups

    return groups.delete(names, admin_of(bootstrap, config))


# ---- cluster ------------------------------------------------------------------------------------------------

Watch = Annotated[bool, typer.Option("--watch", help="Show it anew every second, until Ctrl-C.")]


@cluster_app.command("status", cls=Command)
def cluster_status(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, watch: Watch = False, form: Output = "table", config: Config = None
) -> int:
    """Show the brokers, how many partitions each leads and has, and how many are being moved."""
    from kclient.cli import cluster, sheets

    return sheets.show(cluster.status, admin_of(bootstrap, config), form=form, watch=watch)


@cluster_app.command("describe", cls=Command)
def cluster_describe(
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Only these.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    watch: Watch = False,
    form: Output = "table",
    config: Config = None,
) -> int:
    """Show who leads each partition, under which epoch, who has it, and where it is being moved."""
    from kclient.cli import cluster, sheets

    return sheets.show(
        lambda admin: cluster.describe(admin, topics or []), admin_of(bootstrap, config), form=form, watch=watch
    )


@cluster_app.command("move", cls=Command)
def cluster_move(
    places: Annotated[list[str], typer.Argument(metavar="TOPIC[:PARTITION]")],
    to: Annotated[str, typer.Option("--to", metavar="BROKER[,BROKER]", help="Where to; the first one is to lead.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    change_number: Annotated[
        bool,
        typer.Option("--allow-replication-factor-change", help="Also to more brokers than a partition has, or fewer."),
    ] = False,
    config: Config = None,
) -> int:
    """Move partitions to other brokers."""
    from kclient.cli import cluster

    return cluster.move(places, admin_of(bootstrap, config), to=to, change_number=change_number)


@cluster_app.command("drain", cls=Command)
def cluster_drain(
    brokers: Annotated[
        list[int], typer.Argument(metavar="BROKER", help="Which; none of several gets what another has.")
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")] = False,
    config: Config = None,
) -> int:
    """Move all partitions of brokers to the others."""
    from kclient.cli import cluster

    return cluster.drain(brokers, admin_of(bootstrap, config), dry_run=dry_run)


@cluster_app.command("log-dirs", cls=Command)
def cluster_log_dirs(
    brokers: Annotated[list[int] | None, typer.Argument(metavar="BROKER", min=0, help="Only of these.")] = None,
    topics: Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only what it has.")] = None,
    replicas: Annotated[bool, typer.Option("--replicas", help="Show each partition.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    form: Output = "table",
    config: Config = None,
) -> int:
    """Show the log directories of brokers: how much is in them, and how much space is left."""
    from kclient.cli import brokers as work
    from kclient.cli import sheets

    return sheets.show(
        lambda admin: work.log_dirs(admin, brokers or [], topics or [], replicas=replicas),
        admin_of(bootstrap, config),
        form=form,
    )


@cluster_app.command("quorum", cls=Command)
def cluster_quorum(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, watch: Watch = False, form: Output = "table", config: Config = None
) -> int:
    """Show the KRaft controllers: which one is active, and how far the others are behind."""
    from kclient.cli import brokers, sheets

    return sheets.show(brokers.quorum, admin_of(bootstrap, config), form=form, watch=watch)


@cluster_app.command("features", cls=Command)
def cluster_features(
    updates: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=LEVEL", help="Have this level in use; shown by default.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    downgrade: Annotated[bool, typer.Option("--downgrade", help="To a lower level, if nothing is lost.")] = False,
    unsafe: Annotated[bool, typer.Option("--unsafe-downgrade", help="To a lower level in any case.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check whether it could be done.")] = False,
    form: Output = "table",
    config: Config = None,
) -> int:
    """Show the features of the cluster, such as transaction.version, or change their levels."""
    from kclient.cli import features, sheets

    if updates:
        if form != "table":
            raise UsageError("--output is for what is shown: without NAME=LEVEL")
        return features.update(
            updates, admin_of(bootstrap, config), downgrade=downgrade, unsafe=unsafe, dry_run=dry_run
        )
    if downgrade or unsafe or dry_run:
        raise UsageError("--downgrade, --unsafe-downgrade and --dry-run are for a change: give NAME=LEVEL")
    return sheets.show(features.shown, admin_of(bootstrap, config), form=form)
