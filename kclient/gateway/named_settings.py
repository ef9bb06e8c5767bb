"""Settings of things that are known by a name: kept by the manager, the same at all gateways of a store."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

import anyio
import anyio.lowlevel

from kclient.errors import KafkaError, PolicyViolationError
from kclient.gateway.log_texts import on_one_line
from kclient.gateway.rows.broker import decode_settings, encode_settings
from kclient.htp.errors import ConflictError
from kclient.htp.rows import scan_pages

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.shields import Shields
    from kclient.htp.port import Change, Manager, Versioned
    from kclient.memory_ledger import LimitedAccount

logger: logging.Logger = logging.getLogger("kclient.gateway.config")

_TRIES: Final = 10
"""So often a change is tried that other gateways change at the same time."""
_TOLD: Final = 1_000
"""Characters of settings that the log tells of a change."""
_ONE: Final = 1_000
"""About how many bytes of memory the settings of one thing take, beside texts."""


class NamedSettings(ABC):
    """The settings that AlterConfigs has set for things of one kind, whether these are there or not.

    Args:
        prefix: What the keys of their rows begin with; the name follows, percent-encoded.
        what: What one is called in messages, such as `group`.
        manager: Keeps what was set.
        lease: Under which it is kept.
        shields: Keep a change from being left half done.
        memory: Where they count.
    """

    def __init__(
        self, prefix: str, what: str, manager: Manager, lease: HeldLease, shields: Shields, memory: LimitedAccount
    ) -> None:
        self.prefixes: tuple[str, ...] = (prefix,)
        """What it follows in the log of changes."""
        self._prefix = prefix
        self._what = what
        self._manager = manager
        self._lease = lease
        self._shields = shields
        self._memory = memory
        self._set: dict[str, dict[str, str]] = {}
        self._sizes: dict[str, int] = {}
        """What they take, by the names of things that have some."""
        self._changing = anyio.Lock()
        self._when_changed: list[Callable[[str], object]] = []

    def on_change(self, callback: Callable[[str], object]) -> None:
        """Have `callback(name)` called whenever settings of a thing have changed."""
        self._when_changed.append(callback)

    def of(self, name: str) -> Mapping[str, str]:
        """What was set for a thing."""
        return self._set.get(name, {})

    def names(self) -> list[str]:
        """The things for which something was set."""
        return list(self._set)

    @abstractmethod
    def _check(self, values: Mapping[str, str]) -> None:
        """Raise `KafkaError` unless these may be set for a thing."""

    def _check_stored(self, values: Mapping[str, str]) -> None:
        """The same for what was set before, maybe by another version, or when other settings were in force."""
        self._check(values)

    async def _prepare(self, values: Mapping[str, str]) -> None:  # noqa: B027  (most have nothing to prepare)
        """Do elsewhere what would take long in `_check` and what follows; these need not be what may be set."""

    def _size(self, name: str, values: Mapping[str, str]) -> int:
        """About how many bytes of memory these settings of a thing take; none if there are none."""
        return _ONE + 2 * (len(name) + sum(map(len, values.values()))) if values else 0

    # The store

    async def read_all(self) -> None:
        """Have in force what the rows say now. Raises `HtpError` if the store fails."""
        async with self._changing:
            there: dict[str, Versioned] = {}
            async for page in scan_pages(self._manager, self._prefix):
                there |= page
            for key in {self._key(name) for name in self._set} - there.keys():
                await self._take(key, None)
            for key, row in there.items():
                await self._take(key, row)
                await anyio.lowlevel.checkpoint()

    async def apply(self, changes: Sequence[Change]) -> None:
        """Rows have changed, maybe by another gateway. Raises `HtpError` if the store fails."""
        keys = list(dict.fromkeys(change.key for change in changes))
        async with self._changing:
            found = await self._manager.get(keys)
            for key in keys:
                await self._take(key, found.get(key))
                await anyio.lowlevel.checkpoint()

    def _key(self, name: str) -> str:
        return self._prefix + quote(name, safe="")

    async def _take(self, key: str, row: Versioned | None) -> None:
        name = unquote(key.removeprefix(self._prefix))
        try:
            values = {} if row is None else decode_settings(row.value)
        except ValueError as error:
            logger.error(
                "the settings of %s %s cannot be read, it has none: set them again (%s)",
                self._what,
                on_one_line(name),
                on_one_line(str(error)),
            )
            values = {}
        await self._prepare(values)
        known: dict[str, str] = {}
        for setting, text in values.items():
            try:
                self._check_stored({**known, setting: text})
            except KafkaError as error:
                logger.warning(
                    "a setting of %s %s that was made earlier is ignored: %s",
                    self._what,
                    on_one_line(name),
                    on_one_line(str(error)),
                )
            else:
                known[setting] = text
        self._put(name, known)

    def _put(self, name: str, values: dict[str, str]) -> None:
        before = self._set.pop(name, {})
        if values:
            self._set[name] = values
        size = self._size(name, values)
        self._memory.add(size - self._sizes.pop(name, 0))
        if values:
            self._sizes[name] = size
        if values != before:
            for callback in self._when_changed:
                callback(name)

    async def alter(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        """Change the settings of a thing, durably, and put them in force.

        Args:
            name: Of the thing, which need not be there.
            change: Makes the new settings of the present ones; its errors are raised.
            validate_only: Nothing is changed.

        Raises:
            InvalidConfigurationError, InvalidRequestError: A setting is none, or they do not go together.
            PolicyViolationError: There is no memory for settings of more things.
            HtpError: The store failed.
        """
        key = self._key(name)
        async with self._changing:
            for left in reversed(range(_TRIES)):
                found = (await self._manager.get([key])).get(key)
                await self._take(key, found)
                values = dict(change(self.of(name)))
                await self._prepare(values)
                self._check(values)
                if not self._memory.has_room(self._size(name, values) - self._sizes.get(name, 0)):
                    raise PolicyViolationError(
                        f"there is no memory for settings of more: delete those of a {self._what}, or start the "
                        "gateway with a higher connections.max.memory.bytes"
                    )
                if validate_only or values == self.of(name):
                    return
                row = encode_settings(values) if values else None
                try:
                    with self._shields.shield():
                        expected = {key: 0 if found is None else found.version}
                        await self._manager.commit({key: row}, expected, lease=self._lease.current)
                        self._put(name, values)
                    break
                except ConflictError:
                    if not left:
                        raise
        told = ", ".join(f"{setting}={text}" for setting, text in values.items())
        logger.info(
            "settings of %s %s changed: %s", self._what, on_one_line(name), on_one_line(told, _TOLD) or "none are left"
        )
