"""The commands of `kclient configs` and their options; their work is in `configs.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from kclient.cli.asking import admin_of
from kclient.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Command, Config, Output

configs_app: typer.Typer = typer.Typer(help="Show and change settings.", no_args_is_help=True)

_Topic = Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="This topic's.")]
_Broker = Annotated[int | None, typer.Option("--broker", min=0, metavar="ID", help="This broker's.")]
_BrokerDefaults = Annotated[bool, typer.Option("--broker-defaults", help="Of brokers without one of their own.")]
_BrokerLogger = Annotated[
    int | None, typer.Option("--broker-logger", min=0, metavar="ID", help="The levels of this broker's loggers.")
]
_Group = Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="This group's.")]
_ClientMetrics = Annotated[
    str | None, typer.Option("--client-metrics", metavar="NAME", help="Of this subscription to clients' metrics.")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check whether it could be done.")]


@configs_app.command("describe", cls=Command)
def configs_describe(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Only these; else what was set.")] = None,
    topic: _Topic = None,
    broker: _Broker = None,
    broker_defaults: _BrokerDefaults = False,
    broker_logger: _BrokerLogger = None,
    group: _Group = None,
    client_metrics: _ClientMetrics = None,
    every: Annotated[bool, typer.Option("--all", help="Also what has its default.")] = False,
    synonyms: Annotated[bool, typer.Option("--synonyms", help="Also where else values could come from.")] = False,
    documentation: Annotated[bool, typer.Option("--documentation", help="Also what the settings are for.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    form: Output = "table",
    config: Config = None,
) -> int:
    """Show settings, and where their values come from."""
    from kclient.cli import configs, sheets

    owner = configs.SettingsOwner(topic, broker, broker_defaults, broker_logger, group, client_metrics).resource()
    return sheets.show(
        lambda admin: configs.described(
            admin, owner, names or [], every=every, synonyms=synonyms, documentation=documentation
        ),
        admin_of(bootstrap, config),
        form=form,
    )


@configs_app.command("set", cls=Command)
def configs_set(
    values: Annotated[list[str], typer.Argument(metavar="NAME=VALUE", help="As retention.ms=86400000.")],
    topic: _Topic = None,
    broker: _Broker = None,
    broker_defaults: _BrokerDefaults = False,
    broker_logger: _BrokerLogger = None,
    group: _Group = None,
    client_metrics: _ClientMetrics = None,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Set settings; the others stay."""
    from kclient.cli import configs

    owner = configs.SettingsOwner(topic, broker, broker_defaults, broker_logger, group, client_metrics).resource()
    return configs.put(owner, values, admin_of(bootstrap, config), dry_run=dry_run)


@configs_app.command("remove", cls=Command)
def configs_remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="As retention.ms.")],
    topic: _Topic = None,
    broker: _Broker = None,
    broker_defaults: _BrokerDefaults = False,
    broker_logger: _BrokerLogger = None,
    group: _Group = None,
    client_metrics: _ClientMetrics = None,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    config: Config = None,
) -> int:
    """Return settings to their defaults; the others stay."""
    from kclient.cli import configs

    owner = configs.SettingsOwner(topic, broker, broker_defaults, broker_logger, group, client_metrics).resource()
    return configs.remove(owner, names, admin_of(bootstrap, config), dry_run=dry_run)


@configs_app.command("list", cls=Command)
def configs_list(
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only topic, broker, broker-logger, group or client-metrics."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    form: Output = "table",
    config: Config = None,
) -> int:
    """List what has settings (Kafka 4.1)."""
    from kclient.cli import configs, sheets

    wanted = configs.as_types(types or [])
    return sheets.show(lambda admin: configs.listed(admin, wanted), admin_of(bootstrap, config), form=form)
