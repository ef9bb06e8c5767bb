"""The command line: `kclient gateway`, `produce`, `consume`, `topics`, `groups`, `pipeline`, `info`.

Only a face: what it does, the library does. Commands import what they need when they run, so that each starts fast.
"""

from __future__ import annotations

import sys

from kclient.cli.errors import guarded
from kclient.cli.quick import quick_gateway

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: The words after the program's name; those of the process if None.
    """
    words = sys.argv[1:] if arguments is None else arguments
    quick = quick_gateway(words)
    if quick is not None:
        sys.exit(guarded(quick))
    try:
        from kclient.cli.app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write("The command line needs an extra: pip install 'htp-kclient[cli]'\n")
        sys.exit(2)
    sys.exit(run(words))
