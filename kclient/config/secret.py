"""A text that is never shown: passwords, keys, tokens."""

from __future__ import annotations

import hmac
import re
from typing import NoReturn
from urllib.parse import urlsplit

from kclient.errors import ConfigError

__all__ = ["Secret", "Url", "check_encodable", "is_encodable"]

_HIDDEN = "[hidden]"


class Secret:
    """A password, key or token: no repr, log line or error message shows it; `reveal` gives it out.

    Secrets compare with each other in constant time. A secret never equals a text: compare `Secret(text)`, or what
    `reveal` gives. Copies of all kinds are the secret itself. It cannot be pickled, which would write it down in the
    clear, and nor can what holds it, such as a client's configuration: hand workers the settings, or the name of the
    file they stand in.

    Args:
        value: The text, or another secret.

    Raises:
        TypeError: If it is not text.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str | Secret) -> None:
        if not isinstance(value, str | Secret):
            raise TypeError(f"a secret is text, not a value of type {type(value).__name__}")
        self._value = value.reveal() if isinstance(value, Secret) else value

    def reveal(self) -> str:
        """The text. Use it at the last moment, and keep it nowhere."""
        return self._value

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a Secret cannot be pickled: it would be readable by whoever sees the bytes; hand on where it comes from "
            "(a file, an environment variable), or what reveal() gives"
        )

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


class Url(str):
    """An address; its `repr` leaves out user, password, query and fragment, where some services take secrets."""

    __slots__ = ()

    @property
    def shown(self) -> str:
        """The address as messages may show it."""
        try:
            parts = urlsplit(self)
        except ValueError:
            return _HIDDEN
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()

    def __repr__(self) -> str:
        return repr(self.shown)


NOT_UTF8 = "bytes that are not UTF-8 (lone surrogates in Python; they come from the environment, for instance)"

_SURROGATE = re.compile("[\ud800-\udfff]")


def is_encodable(text: str | Secret) -> bool:
    """Whether UTF-8 can carry a text: not if it holds a lone surrogate.

    Python makes such texts of environment variables, arguments and file names whose bytes are not UTF-8.
    """
    return _SURROGATE.search(text.reveal() if isinstance(text, Secret) else text) is None


def check_encodable(what: str, *texts: str | Secret) -> None:
    """Refuse texts that UTF-8 cannot carry, before an error of encoding them shows what they are.

    Args:
        what: What they are, for the message.
        texts: The texts.

    Raises:
        ConfigError: If one of them holds a lone surrogate.
    """
    if not all(map(is_encodable, texts)):
        raise ConfigError(f"{what}: there are {NOT_UTF8}")
