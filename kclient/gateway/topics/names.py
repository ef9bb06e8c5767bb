"""Which names topics may have."""

from __future__ import annotations

import re
from typing import Final

from kclient.errors import InvalidTopicError

MAX_NAME: Final = 249
"""Characters that the name of a topic has at most."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
INTERNAL: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, "__share_group_state"})
"""Kafka's own topics: a gateway keeps their content elsewhere, so they are not made by asking for them."""


def check_name(name: str) -> None:
    """`InvalidTopicError` for a name that Kafka would not take."""
    if name in (".", "..") or not _LEGAL.fullmatch(name):
        raise InvalidTopicError(
            f"Topic name is invalid: {name[:300]!r} is not 1 to 249 ASCII letters, digits, '.', '_' or '-'"
        )
