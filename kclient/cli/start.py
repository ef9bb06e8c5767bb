"""From the words of the command line to the command that they name."""

from __future__ import annotations

import os
import sys

from kclient.cli.errors import USAGE, guarded
from kclient.cli.quick import quick_gateway


def run(words: list[str]) -> int:
    """Run one command; returns the exit code."""
    _open_standard_streams()
    quick = quick_gateway(words)
    if quick is not None:
        return guarded(quick)
    try:
        from kclient.cli.app import run as run_command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write("The command line needs an extra: pip install 'htp-kclient[cli]'\n")
        return USAGE
    return run_command(words)


def _open_standard_streams() -> None:
    """Streams that the parent has closed (`>&-`) are empty; else a socket would get their number, and what is said."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
