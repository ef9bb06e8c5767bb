"""The command line: `kclient gateway`, `produce`, `consume`, `topics`, `groups`, `pipeline`, `info`.

Only a face: what it does, the library does. Commands import what they need when they run, so that each starts fast.
This module, where the process begins, imports nothing: Ctrl-C while things are loaded finds `main` at work already.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: The words after the program's name; those of the process if None.
    """
    try:
        from kclient.cli.start import run

        code = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # while things are loaded; commands have an end of their own
        code = 130
    # CPython ends by the signal, and not with the code, if it fell into an `exec` of text (there is one for every
    # dataclass), until the next
    exec("")  # noqa: S102
    sys.exit(code)
