"""How the command line ends when something is wrong: one sentence on standard error, and an exit code.

1 means that the operation failed, 2 that it was asked for wrongly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

FAILED = 1
USAGE = 2
INTERRUPTED = 130


class UsageError(Exception):
    """The command was given something that it cannot take; the text says what and what it can take."""


def complain(sentence: str) -> None:
    """Write one sentence to standard error."""
    sys.stderr.write(f"kclient: {sentence}\n")
    sys.stderr.flush()


def guarded(command: Callable[[], object]) -> int:
    """Run a command; returns its exit code, whatever happens."""
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        return _pipe_closed()
    except SystemExit as ending:
        # the option parser ends the process itself when the pipe is closed
        return _pipe_closed() if isinstance(ending.__context__, BrokenPipeError) else int(ending.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  (everything a user can run into becomes a sentence)
        return report(error)
    return code if isinstance(code, int) else 0


def _pipe_closed() -> int:
    """Whoever read our output has had enough, which is no error; nothing may be written at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def report(error: Exception) -> int:
    """Say what went wrong; returns the exit code."""
    from kclient.errors import ConfigError, MissingExtraError

    shown = getattr(error, "format_message", None)  # errors of the option parser
    if shown is not None:
        complain(str(shown()))
        return int(getattr(error, "exit_code", USAGE))
    if hasattr(error, "exit_code"):  # typer.Exit
        return int(error.exit_code)
    if type(error).__name__ == "Abort":
        return INTERRUPTED
    complain(sentence_of(error))
    return USAGE if isinstance(error, UsageError | ConfigError | MissingExtraError) else FAILED


def sentence_of(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
