"""What may happen between any two steps of what goes in slices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup


class Moments:
    """Makes everything about groups pause wherever it may, and begins something at one of these moments."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, tasks: TaskGroup, moment: int, act: Callable[[], Awaitable[object]]
    ) -> None:
        self.past: int = 0
        moments = self

        class EveryPace:
            over = True

            def __init__(self, _flow: object) -> None:
                pass

            async def pause(self) -> None:
                moments.past += 1
                if moments.past == moment + 1:
                    tasks.start_soon(act)
                await anyio.lowlevel.checkpoint()

        for module in ("writer", "committed", "deleted_topics"):
            monkeypatch.setattr(f"kclient.gateway.groups.{module}.Pace", EveryPace)
