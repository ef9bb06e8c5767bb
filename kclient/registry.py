"""What is registered by name, and imported on first use.

It imports nothing itself: `import kclient` registers what the package has here, and is to cost next to nothing. What
connects to an address is found and called by `kclient.net.connectors`, a framing by `kclient.htp.framings`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

connectors: dict[str, Callable[..., Any] | str] = {}
"""What connects to an address, by the word before the colon, in lower case: functions, or their places as
`module:function`."""
framings: dict[str, Callable[[], Any] | str] = {}
"""What makes the framing of a stored message, by the framing's name: likewise."""
