"""The clients for blocking code: the same names, arguments and results as in `kclient`, without `await`.

One background thread runs the event loop of all of them; it starts with the first. Deliveries have `result()` where
async code awaits them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.lazy_exports import lazily

if TYPE_CHECKING:
    from kclient.sync.admin import Admin as Admin
    from kclient.sync.consumer import Consumer as Consumer
    from kclient.sync.gateway import Gateway as Gateway
    from kclient.sync.producer import Producer as Producer
    from kclient.sync.share_consumer import ShareConsumer as ShareConsumer

_EXPORTS = {
    "Admin": "kclient.sync.admin",
    "Consumer": "kclient.sync.consumer",
    "Gateway": "kclient.sync.gateway",
    "Producer": "kclient.sync.producer",
    "ShareConsumer": "kclient.sync.share_consumer",
}

__all__ = sorted(_EXPORTS)  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # else the checkers would believe that every name exists
    __getattr__, __dir__ = lazily(__name__, _EXPORTS)
