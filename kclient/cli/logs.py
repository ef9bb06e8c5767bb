"""The log of a command that serves: lines of text, or of JSON, on standard error."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from datetime import UTC, datetime
from typing import Final

from kclient.cli.errors import complain_by

__all__ = ["FORMATS", "LEVELS", "PROCESS", "JsonFormatter", "complain_in", "configure_logs", "json_line"]

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
FORMATS: Final = ("text", "json")
PROCESS: Final = "KCLIENT_GATEWAY_PROCESS"
"""Of the environment: which of several processes this one is."""
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_STANDARD: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
"""What every record has; whatever else one has was given to it as `extra`."""


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: `time` (ISO 8601, UTC), `level`, `logger`, `message`, `exception`, `pid`.

    Args:
        process: Which of several processes this is: as `process` in each line; None where there is only one.
    """

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        more: dict[str, object] = {
            name: value for name, value in vars(record).items() if name not in _STANDARD and not name.startswith("_")
        }
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            more["stack"] = self.formatStack(record.stack_info)
        return json_line(
            record.levelname.lower(), record.name, _message(record), at=record.created, pid=record.process,
            process=self._process, more=more,
        )  # fmt: skip


def json_line(
    level: str,
    name: str,
    message: str,
    *,
    at: float | None = None,
    pid: int | None = None,
    process: int | None = None,
    more: dict[str, object] | None = None,
) -> str:
    """A line of a log in JSON, without its end.

    Args:
        level: Of severity, in small letters.
        name: Of the logger.
        message: What it says.
        at: When, in seconds since 1970; now if None.
        pid: Of the process; this one's if None.
        process: Which of several it is.
        more: Further fields, which give way to these.
    """
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    fields: dict[str, object] = {
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": level,
        "logger": name,
        "message": message,
        "pid": os.getpid() if pid is None else pid,
    }
    if process is not None:
        fields["process"] = process
    try:
        return json.dumps({**fields, **(more or {}), **fields}, default=str, allow_nan=False)
    except Exception:  # noqa: BLE001  (whatever it was given: the line is told, and is JSON)
        return json.dumps({**fields, **{key: _told(value) for key, value in (more or {}).items()}, **fields})


def _told(value: object) -> object:
    """A further field, as text if JSON has no such value."""
    try:
        json.dumps(value, allow_nan=False)
    except Exception:  # noqa: BLE001  (as above)
        try:
            return str(value)
        except Exception:  # noqa: BLE001  (as above)
            return f"<{type(value).__name__}>"
    return value


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  (it does not fit its arguments, or one cannot be told)
        return str(record.msg)


def configure_logs(level: str, form: str) -> None:
    """Have the log written, and what the command complains of: both in this form.

    Args:
        level: The least severity, one of `LEVELS` in letters of any case.
        form: One of `FORMATS`.
    """
    if form == "json":
        logging.captureWarnings(True)  # what Python warns of
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(_process()) if form == "json" else logging.Formatter(_TEXT))
    complain_in(form)
    logging.basicConfig(level=level.upper(), handlers=[handler])


def complain_in(form: str) -> None:
    """Have what the command complains of written in this form, before anything can be wrong.

    Args:
        form: One of `FORMATS`; with another one, which is what is wrong, it stays text.
    """
    if form == "json":
        process = _process()
        complain_by(lambda sentence: json_line("error", "kclient", sentence, process=process))


def _process() -> int | None:
    told = os.environ.get(PROCESS, "")
    return int(told) if told.isascii() and told.isdigit() else None
