"""How the command line ends when something is wrong: one sentence on standard error, and an exit code.

1 means that the operation failed, 2 that it was asked for wrongly.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

FAILED = 1
USAGE = 2
INTERRUPTED = 130
TERMINATED = 143
_NOT_RUNNING = ("No broker could be reached", "Connection refused")  # in what the clients' connection errors say


class UsageError(Exception):
    """The command was given something that it cannot take; the text says what and what it can take."""


class UnreachableError(Exception):
    """No broker was reached; the text says which option names it."""


class Terminated(BaseException):
    """SIGTERM came: whatever runs ends as it does after Ctrl-C, so that groups are left and Spark is stopped."""


def _plain(sentence: str) -> str:
    return f"kclient: {sentence}"


_line_of: Callable[[str], str] = _plain


def complain_by(line_of: Callable[[str], str]) -> None:
    """From now on, have what goes wrong written as the line that this makes of a sentence."""
    global _line_of
    _line_of = line_of


def complain(sentence: str) -> None:
    """Write one sentence to standard error; where that cannot be written, the exit code has to tell."""
    with suppress(OSError):
        sys.stderr.write(f"{_line_of(sentence)}\n")
        sys.stderr.flush()


def guarded(command: Callable[[], object]) -> int:
    """Run a command; returns its exit code, whatever happens."""
    try:
        with _sigterm_raises():
            code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        return _pipe_closed()
    except SystemExit as ending:
        # the option parser ends the process itself when the pipe is closed
        return _pipe_closed() if isinstance(ending.__context__, BrokenPipeError) else int(ending.code or 0)
    except (KeyboardInterrupt, Terminated) as interruption:
        return _interrupted(interruption)
    except Exception as error:  # noqa: BLE001  (everything a user can run into becomes a sentence)
        return report(error)
    return code if isinstance(code, int) else 0


_told_to_end = False
"""Whether SIGTERM has come to the command that runs."""


def check_terminated() -> None:
    """Called where a command begins to serve or to work, and now and then while it does.

    A signal raises wherever Python is, and what it raises gets lost there at times: where the importer compiles, in a
    finalizer, in a callback of the event loop.

    Raises:
        Terminated: SIGTERM has come.
    """
    if _told_to_end:
        raise Terminated


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """While the body runs, SIGTERM raises `Terminated` in it; a second one finds the usual answer, and kills."""
    global _told_to_end
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        global _told_to_end
        signal.signal(signal.SIGTERM, before)
        _told_to_end = True
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _told_to_end = False


def _pipe_closed() -> int:
    """Whoever read our output has had enough, which is no error; nothing may be written at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def report(error: Exception) -> int:
    """Say what went wrong; returns the exit code."""
    from kclient.errors import MissingExtraError, NotYetSupportedError

    shown = getattr(error, "format_message", None)  # errors of the option parser
    if shown is not None:
        _complain_of_usage(error, str(shown()))
        return int(getattr(error, "exit_code", USAGE))
    if hasattr(error, "exit_code"):  # typer.Exit
        return int(error.exit_code)
    if type(error).__name__ == "Abort":  # what the option parser makes of Ctrl-C
        return _interrupted(error.__context__ or error)
    complain(sentence_of(error))
    if isinstance(error, UsageError | MissingExtraError | NotYetSupportedError):
        return USAGE
    if isinstance(error, UnicodeEncodeError):
        return FAILED
    # what clients refuse of their arguments and settings
    return USAGE if isinstance(error, ValueError | TypeError) else FAILED


def _interrupted(error: BaseException) -> int:
    return TERMINATED if isinstance(error, Terminated) else INTERRUPTED


def _complain_of_usage(error: Exception, text: str) -> None:
    if text.startswith("Usage:"):  # a command that only has sub-commands shows its help
        with suppress(OSError):
            sys.stderr.write(f"{text}\n")
        return
    context = getattr(error, "ctx", None)
    path = "kclient" if context is None else context.command_path
    complain(f"{text.rstrip('.')}; see {path} --help")


def reason_of(error: BaseException) -> str:
    """What an exception says, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename is None and error.strerror:
        text = error.strerror  # without the number
    if isinstance(error, UnicodeEncodeError):
        text = f"the output has characters that the encoding {error.encoding} lacks: set PYTHONIOENCODING=utf-8"
    return text or type(error).__name__


def sentence_of(error: BaseException) -> str:
    """An exception in one line, with what may help."""
    text = reason_of(error)
    if _unreachable(error):
        text += "; is it running? --bootstrap, or the variable KCLIENT_BOOTSTRAP_SERVERS, says where it is"
    return text


@contextmanager
def named_by(options: str) -> Iterator[None]:
    """While the body runs, other options than --bootstrap say where the brokers are.

    Args:
        options: What they say, such as "--from says where it is".

    Raises:
        UnreachableError: No broker was reached.
    """
    try:
        yield
    except Exception as error:
        if not _unreachable(error):
            raise
        raise UnreachableError(f"{reason_of(error)}; is it running? {options}") from error


def _unreachable(error: BaseException) -> bool:
    """Whether no broker was reached; others are refused connections too, such as Spark by its Java."""
    from kclient.errors import BrokerConnectionError, KafkaTimeoutError

    if not isinstance(error, BrokerConnectionError | KafkaTimeoutError):
        return False
    text = reason_of(error)
    return any(said in text for said in _NOT_RUNNING)
