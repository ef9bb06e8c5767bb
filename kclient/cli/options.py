"""The options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

_BOOTSTRAP_VARIABLE = "KCLIENT_BOOTSTRAP_SERVERS"

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar=_BOOTSTRAP_VARIABLE, metavar="ADDRESS",
        help="The broker: HOST:PORT (several with commas), or embedded:DIR. (memory:NAME ends with the command.)",
    ),
]  # fmt: skip
Config = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting, under Kafka's name; any number of them."),
]
DEFAULT_BOOTSTRAP = "localhost:9092"
