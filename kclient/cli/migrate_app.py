"""The commands of `kclient migrate` and their options; their work is in `migrate.py`."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from kclient.cli.errors import check_terminated
from kclient.cli.options import Command, Config
from kclient.cli.settings import parse_config

migrate_app: typer.Typer = typer.Typer(
    help="Move a Kafka cluster's topics and committed offsets into a gateway's store.", no_args_is_help=True
)

_From = Annotated[
    str, typer.Option("--from", metavar="ADDRESS", help="The cluster to leave: HOST:PORT, several with commas.")
]
_To = Annotated[str, typer.Option("--to", metavar="embedded:DIR", help="The store; a new DIR is made by run.")]
_Topics = Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="What to move; all topics by default.")]
_Pattern = Annotated[
    str | None, typer.Option("--pattern", metavar="REGEX", help="Move the topics of such names, new ones too.")
]
_Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="TOPIC", help="Leave this one out; any number of them.")
]
_Rate = Annotated[
    float | None, typer.Option("--max-bytes-per-second", metavar="COUNT", help="Read no faster from the cluster.")
]
_Memory = Annotated[
    int | None,
    typer.Option(
        "--max-memory", metavar="BYTES", help="Have about so much of records in memory; 134217728 (128 MiB) if unsaid."
    ),
]
_Listen = Annotated[
    str | None,
    typer.Option("--listen", metavar="HOST:PORT", help="Let clients read what was moved, while it runs."),
]
_Advertise = Annotated[
    str | None, typer.Option("--advertise", metavar="HOST:PORT", help="The address these are told, if it is another.")
]
_Durability = Annotated[
    str, typer.Option("--durability", metavar="synced|written", help="When a record counts as moved.")
]
_Mapping = Annotated[
    str, typer.Option("--mapping", metavar="domain|multilevel|virtual|broker", help="How new topics lie in HTP.")
]
_Brokers = Annotated[
    int | None, typer.Option("--brokers", metavar="N", help="How many brokers HTP has. As before if unsaid.")
]
_GatewayConfig = Annotated[
    list[str] | None,
    typer.Option("--gateway-config", metavar="NAME=VALUE", help="A setting of the gateway; any number of them."),
]
_RangesOnly = Annotated[
    bool, typer.Option("--ranges-only", help="Compare where partitions begin and end, and not their records.")
]
_Json = Annotated[bool, typer.Option("--json", help="Write one JSON object.")]


def _source(address: str, config: list[str] | None) -> dict[str, object]:
    check_terminated()
    logging.getLogger("kclient").addHandler(logging.NullHandler())  # what is logged is also told
    from kclient.cli.migrate import source_settings

    return source_settings(address, config)


@migrate_app.command(cls=Command)
def plan(
    source: _From,
    store: _To,
    topics: _Topics = None,
    pattern: _Pattern = None,
    exclude: _Exclude = None,
    config: Config = None,
    as_json: _Json = False,
) -> int:
    """Show what would be moved and what not; nothing is changed. 1 if something stands in the way."""
    settings = _source(source, config)
    from kclient.cli import migrate

    return migrate.plan(settings, store, migrate.selection(topics, pattern, exclude), as_json=as_json)


@migrate_app.command(cls=Command)
def run(
    source: _From,
    store: _To,
    topics: _Topics = None,
    pattern: _Pattern = None,
    exclude: _Exclude = None,
    rate: _Rate = None,
    memory: _Memory = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End when everything is there that the cluster has.")
    ] = False,
    listen: _Listen = None,
    advertise: _Advertise = None,
    durability: _Durability = "synced",
    mapping: _Mapping = "domain",
    brokers: _Brokers = None,
    gateway_config: _GatewayConfig = None,
    config: Config = None,
) -> int:
    """Move what there is and what comes, until Ctrl-C; run it again to go on where it was."""
    settings = _source(source, config)
    from kclient.cli import migrate

    store_options = migrate.StoreOptions(
        store, listen, advertise, durability, mapping, brokers, parse_config(gateway_config, "--gateway-config")
    )
    return migrate.run(
        settings, store_options, migrate.selection(topics, pattern, exclude), rate=rate, memory=memory,
        until_caught_up=until_caught_up,
    )  # fmt: skip


@migrate_app.command(cls=Command)
def verify(
    source: _From,
    store: Annotated[
        str, typer.Option("--to", metavar="ADDRESS", help="The store, embedded:DIR, or a gateway's HOST:PORT.")
    ],
    topics: _Topics = None,
    pattern: _Pattern = None,
    exclude: _Exclude = None,
    ranges_only: _RangesOnly = False,
    config: Config = None,
    as_json: _Json = False,
) -> int:
    """Compare records and committed offsets on both sides; 1 if they differ."""
    settings = _source(source, config)
    from kclient.cli import migrate

    selected = migrate.selection(topics, pattern, exclude)
    return migrate.verify(settings, store, selected, records=not ranges_only, as_json=as_json)


@migrate_app.command(cls=Command)
def cutover(
    source: _From,
    store: _To,
    topics: _Topics = None,
    pattern: _Pattern = None,
    exclude: _Exclude = None,
    quiet: Annotated[
        float,
        typer.Option("--quiet-seconds", min=0, metavar="SECONDS", help="Nobody may have written for so long."),
    ] = 10.0,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Wait no longer for that and for groups.")
    ] = 300.0,
    allow_active_groups: Annotated[
        bool,
        typer.Option("--allow-active-groups", help="Go on though groups have members; later commits are not moved."),
    ] = False,
    ranges_only: _RangesOnly = False,
    rate: _Rate = None,
    memory: _Memory = None,
    durability: _Durability = "synced",
    mapping: _Mapping = "domain",
    brokers: _Brokers = None,
    gateway_config: _GatewayConfig = None,
    config: Config = None,
) -> int:
    """Wait until producers have stopped, move the rest, compare, and have the store take over."""
    settings = _source(source, config)
    from kclient.cli import migrate

    store_options = migrate.StoreOptions(
        store, None, None, durability, mapping, brokers, parse_config(gateway_config, "--gateway-config")
    )
    return migrate.cutover(
        settings, store_options, migrate.selection(topics, pattern, exclude), quiet=quiet, timeout=timeout,
        active_groups=allow_active_groups, records=not ranges_only, rate=rate, memory=memory,
    )  # fmt: skip
