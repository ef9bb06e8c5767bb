"""Reading messages of a shared topic in windows: long enough to serve several partitions, short enough for one turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from kclient.gateway.virtual.envelopes import LAYOUT, SIZE
from kclient.gateway.virtual.windows import AT_ONCE, WINDOW_BYTES, Window
from kclient.htp.errors import DamagedError, PositionError
from kclient.records import EnvelopedBatches

if TYPE_CHECKING:
    from kclient.gateway.virtual.windows import Windows
    from kclient.htp.port import DirectTopic, OpenTopic, Pulled

_LEAST: Final = 1 << 16
"""Bytes of a window, at least."""
_LARGE: Final = 8
"""A message is large that is more than one part in so many of a window: one that is cut off is read twice."""
_LONGER: Final = 4
"""So many windows make one of large messages, at most."""
_APART: Final = 2 * SIZE
"""Bytes that are reckoned for each message beside the mean of their batches, which is somewhat out of date."""


class WindowReader:
    """What was read is kept in windows, as long as there is room; one read of the disk is under way at a time.

    Args:
        inner: The topic.
        direct: The same, if it has calls without a switch of tasks.
        windows: Keep what was read.
    """

    def __init__(self, inner: OpenTopic, direct: DirectTopic | None, windows: Windows) -> None:
        self._inner = inner
        self._direct = direct
        self._windows = windows
        self.mean: int = WINDOW_BYTES
        """About how many bytes a message has."""
        self._reading = anyio.Lock()
        self._stopped = False

    def learn(self, size: int) -> None:
        """A message of so many bytes was sent."""
        self.mean += (size - self.mean) >> 4

    def stop(self) -> None:
        """Keep nothing any more, nor what is read from now on."""
        self._stopped = True
        self._windows.clear()

    @property
    def _window_bytes(self) -> int:
        """So much is read at once: no more messages than may be looked at in one turn, and large ones whole."""
        message = self.mean + _APART
        if message > WINDOW_BYTES // _LARGE:
            most = _LONGER * WINDOW_BYTES
            return min(max(most // message, 1) * message, most)
        return max(min(WINDOW_BYTES, AT_ONCE * message), _LEAST)

    def read_nowait(self, ordinal: int, few: int | None) -> Window | None:
        """Messages from an ordinal on, `few` or a window; None if they must first come from the disk.

        Raises:
            DamagedError: The message is not there, or is damaged.
            PositionError: It was trimmed, or is not there yet.
        """
        window = self._windows.find(ordinal)
        if window is not None:
            return window
        direct = self._direct
        if direct is None:
            return None
        begin = self._windows.begin_for(ordinal) if few is None else ordinal
        try:
            try:
                pulled = direct.pull_nowait(begin, max_bytes=self._window_bytes, max_messages=few)
            except PositionError:  # it was trimmed meanwhile, up to there at most
                if begin == ordinal:
                    raise
                pulled = direct.pull_nowait(ordinal, max_bytes=self._window_bytes)
            if pulled is not None and pulled.last < ordinal:
                pulled = direct.pull_nowait(ordinal, max_bytes=self._window_bytes)
        except DamagedError:
            if few == 1:
                raise
            few, pulled = 1, direct.pull_nowait(ordinal, max_bytes=1, max_messages=1)
        window = None if pulled is None else self._window(pulled, ordinal, few)
        if pulled is not None and window is None:
            pulled = direct.pull_nowait(ordinal, max_bytes=1, max_messages=1)
            window = None if pulled is None else self._window(pulled, ordinal, 1)
        return window

    async def read(self, ordinal: int, few: int | None) -> Window:
        """The same, from the disk.

        Raises:
            DamagedError: The message is not there, or is damaged.
            PositionError: It was trimmed, or is not there yet.
        """
        async with self._reading:
            window = self._windows.find(ordinal)
            if window is not None:
                return window
            begin = self._windows.begin_for(ordinal) if few is None else ordinal
            try:
                try:
                    pulled = await self._inner.pull(begin, max_bytes=self._window_bytes, max_messages=few)
                except PositionError:
                    if begin == ordinal:
                        raise
                    pulled = await self._inner.pull(ordinal, max_bytes=self._window_bytes)
                if pulled.last < ordinal:
                    pulled = await self._inner.pull(ordinal, max_bytes=self._window_bytes)
            except DamagedError:
                if few == 1:
                    raise
                few, pulled = 1, await self._inner.pull(ordinal, max_bytes=1, max_messages=1)
            window = self._window(pulled, ordinal, few)
            if window is None:
                pulled = await self._inner.pull(ordinal, max_bytes=1, max_messages=1)
                window = self._window(pulled, ordinal, 1)
                assert window is not None
            return window

    def _window(self, pulled: Pulled, ordinal: int, few: int | None) -> Window | None:
        """What was read; None if ordinals are left out, or something is damaged, between its first message and this."""
        if not pulled.data or pulled.first > ordinal:
            raise DamagedError(f"{self._inner.place.topic}: message {ordinal} is not there")
        data = pulled.data
        batches = EnvelopedBatches(data, pulled.first, LAYOUT)
        following = batches.next
        if following <= ordinal:
            if pulled.first < ordinal and few != 1:
                return None
            raise DamagedError(f"{self._inner.place.topic}: message {ordinal} is damaged")
        window = Window(pulled.first, following, data, batches)
        self.mean = len(data) // (following - pulled.first)
        if few is None and not self._stopped:
            self._windows.add(window)
        return window
