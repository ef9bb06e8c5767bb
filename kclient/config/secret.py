"""A text that is never shown: passwords, keys, tokens."""

from __future__ import annotations

import hmac

__all__ = ["Secret"]

_HIDDEN = "[hidden]"


class Secret:
    """A password, key or token: no repr, log line or error message shows it; `reveal` gives it out.

    Secrets compare in constant time; they can be pickled, for programs that hand settings to their workers.

    Args:
        value: The text, or another secret.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str | Secret) -> None:
        self._value = value.reveal() if isinstance(value, Secret) else value

    def reveal(self) -> str:
        """The text. Use it at the last moment, and keep it nowhere."""
        return self._value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(
            self._value.encode(errors="surrogatepass"), other._value.encode(errors="surrogatepass")
        )

    def __hash__(self) -> int:
        return hash(self._value)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return _HIDDEN

    def __str__(self) -> str:
        return _HIDDEN
