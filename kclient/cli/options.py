"""The options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from kclient.cli.errors import UsageError

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
FORMS = ("table", "json", "yaml")
"""What `--output` may be."""
Output = Annotated[
    str,
    typer.Option("--output", metavar="|".join(FORMS), help="What is printed.", autocompletion=lambda: list(FORMS)),
]
DEFAULT_BOOTSTRAP = "localhost:9092"


class Command(TyperCommand):
    """A command that takes each option once, unless it says otherwise: of several values all but one are ignored."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        seen = set[str]()
        for option in given:
            name = option.opts[0]
            if name in seen and not getattr(option, "multiple", False) and not getattr(option, "is_flag", False):
                raise UsageError(f"{name} is given twice; see {ctx.command_path} --help")
            seen.add(name)
        return super().parse_args(ctx, args)
