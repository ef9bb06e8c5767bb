"""Where what connects to an address is registered, by the scheme of the address.

It imports nothing: `import kclient` registers the schemes of the package here, and is to cost next to nothing. What
connects is found and called by `kclient.net.connectors`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

connectors: dict[str, Callable[..., Any] | str] = {}
"""By the word before the colon, in lower case: functions, or their places as `module:function`."""
