"""The command line: `kclient gateway`, `produce`, `consume`, `topics`, `groups`, `pipeline`, `info`.

Only a face: what it does, the library does. Commands import what they need when they run, so that each starts fast.
"""

from __future__ import annotations

import os
import sys

from kclient.cli.errors import INTERRUPTED, USAGE, guarded
from kclient.cli.quick import quick_gateway

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: The words after the program's name; those of the process if None.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        code = _run(words)
    except KeyboardInterrupt:  # while things are loaded; commands have an end of their own
        code = INTERRUPTED
    sys.exit(code)


def _run(words: list[str]) -> int:
    _open_standard_streams()
    quick = quick_gateway(words)
    if quick is not None:
        return guarded(quick)
    try:
        from kclient.cli.app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write("The command line needs an extra: pip install 'htp-kclient[cli]'\n")
        return USAGE
    return run(words)


def _open_standard_streams() -> None:
    """Streams that the parent has closed (`>&-`) are empty; else a socket would get their number, and what is said."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
