"""What `kclient gateway` is given: its options, and the settings of its file and of the command line together."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kclient.cli.errors import UsageError
from kclient.cli.logs import FORMATS, LEVELS
from kclient.cli.settings import parse_config
from kclient.errors import ConfigError
from kclient.gateway.config import BrokerConfig
from kclient.gateway.metrics_server import check_prometheus
from kclient.gateway.security.listeners import ADVERTISED, LISTENERS, PROTOCOLS, listeners_of
from kclient.gateway.server_properties import ServerProperties, read_server_properties
from kclient.net.address import parse_address

logger: logging.Logger = logging.getLogger("kclient.gateway.config")

_PATHS: Final = ("/", "./", "../", "~")
"""What paths begin with, and names of settings do not."""
_OF_LISTENERS: Final = (LISTENERS, ADVERTISED, PROTOCOLS)


class GatewaySettings:
    """`--config`, each either NAME=VALUE or the file of a Kafka broker; what the command line says comes first.

    Args:
        given: What was given.

    Raises:
        UsageError: One is neither, a name comes twice, or there are several files.
    """

    def __init__(self, given: list[str] | None) -> None:
        files = [each for each in given or [] if _is_path(each)]
        for each in files:
            if not each.startswith(_PATHS) and not Path(each).exists():
                raise UsageError(
                    f"--config takes NAME=VALUE, or the file of a Kafka broker, and there is no file {each!r}"
                )
        if len(files) > 1:
            raise UsageError(f"--config takes one file, and was given {files[0]} and {files[1]}")
        self.file: Path | None = Path(files[0]).expanduser().absolute() if files else None
        """Where it is."""
        self.of_the_line: dict[str, str] = parse_config([each for each in given or [] if not _is_path(each)])
        """What the command line says."""
        self._without: frozenset[str] = frozenset()
        self._once: ServerProperties | None = None
        """What came out of a pipe, which has nothing to say a second time."""

    def read(self) -> dict[str, str]:
        """All settings, the file's as it is now.

        Raises:
            ConfigError: The file cannot be read, or is none.
        """
        return {**self._of_the_file().settings, **self.of_the_line}

    def read_again(self) -> dict[str, str]:
        """All settings, as `read`, when they may have changed.

        Raises:
            ConfigError: The file cannot be read, or is none, or is a pipe.
        """
        if self._once is not None:
            raise ConfigError(f"{self.file} is a pipe or the like, which cannot be read a second time")
        return self.read()

    def check_for_others(self) -> None:
        """Raise `UsageError` if other processes could not read the file."""
        self._of_the_file()
        if self._once is not None:
            raise UsageError(f"--processes needs a file that each process can read, and {self.file} is a pipe")

    def log_dirs(self) -> str | None:
        """What the file says of Kafka's own logs."""
        return self._of_the_file().log_dirs

    def leave_listeners(self, option: str) -> None:
        """An option of the command says where to listen: the file does not, if its listeners take clients as that does.

        Raises:
            UsageError: The file's listeners encrypt, or have clients log in.
            ConfigError: They make no sense.
        """
        settings = self._of_the_file().settings
        if LISTENERS not in settings or LISTENERS in self.of_the_line:
            return
        found = listeners_of(BrokerConfig({**settings, **self.of_the_line}))
        if any(each.security_protocol != "PLAINTEXT" for each in found):
            raise UsageError(
                f"{option} would take the place of {LISTENERS} in {self.file}, which encrypt or have clients log in: "
                f"leave it out, or give --config {LISTENERS}=NAME://HOST:PORT"
            )
        own = {name for name in settings if name.startswith("listener.name.")}
        self._without = frozenset({*_OF_LISTENERS, *own})

    def _of_the_file(self) -> ServerProperties:
        if self.file is None:
            return ServerProperties({}, None)
        found = self._once or read_server_properties(self.file)
        if self._once is None and not self.file.is_file():  # as of `--config <(…)`, or /dev/stdin
            self._once = found
        kept = {name: text for name, text in found.settings.items() if name not in self._without}
        return ServerProperties(kept, found.log_dirs)


def _is_path(given: str) -> bool:
    return "=" not in given or given.startswith(_PATHS)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """The options of `kclient gateway`, as they were given; None for what was not."""

    data: str | None
    listen: str | None = None
    advertise: str | None = None
    durability: str = "synced"
    mapping: str = "domain"
    brokers: int | None = None
    metrics: str | None = None
    health: str | None = None
    settings: GatewaySettings
    log_level: str = "warning"
    log_format: str = "text"
    add_user: str | None = None
    password_file: Path | None = None

    def check(self) -> None:
        """Refuse what the command cannot be given. Raises `UsageError`, `ConfigError` or `MissingExtraError`."""
        if self.log_level.lower() not in LEVELS:
            raise UsageError(f"--log-level is one of {', '.join(LEVELS)}, not {self.log_level!r}")
        if self.log_format not in FORMATS:
            raise UsageError(f"--log-format is one of {', '.join(FORMATS)}, not {self.log_format!r}")
        if self.metrics is not None:
            check_prometheus()
            parse_address(self.metrics, default_port=None)  # a broker's is none for metrics
        if self.health is not None:
            parse_address(self.health, default_port=None)
        self.directory()
        for option, value in (("--listen", self.listen), ("--advertise", self.advertise)):
            if value is not None:
                self.settings.leave_listeners(option)

    def directory(self) -> Path:
        """The data directory. Raises `UsageError` if what was given is hardly meant as one."""
        if self.data is None:
            logs = self.settings.log_dirs()
            more = (
                f"; log.dirs={logs} in {self.settings.file} has Kafka's logs, which a gateway does not read"
                if logs
                else ""
            )
            raise UsageError(
                f"--data DIR is missing: name a directory for what the gateway keeps, which may be new{more}"
            )
        if not self.data:
            raise UsageError("--data is empty: name a directory, which may be new")
        if self.data.startswith(("embedded:", "memory:")):
            raise UsageError(
                f"--data names a directory, and {self.data!r} is an address: a gateway keeps its messages on disk"
            )
        return Path(self.data).absolute()

    def tell_of_log_dirs(self) -> None:
        """Tell the log that Kafka's own logs are not looked at, where the file names them."""
        logs = self.settings.log_dirs()
        if logs:
            logger.info(
                "log.dirs=%s in %s has no effect: the gateway keeps its messages in %s, and does not read Kafka's logs "
                "(kclient migrate copies topics from a running cluster)", logs, self.settings.file, self.directory(),
            )  # fmt: skip
