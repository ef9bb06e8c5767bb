"""The error of a value that cannot be written, and how errors name a message and a place in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kclient.errors import UnsupportedVersionError

_LONGEST = 120


class EncodeError(ValueError):
    """A value cannot be written: it does not fit its field, or is none of the message's.

    The text names message, version and field: `CreateTopics v4 request: topics[0].num_partitions: 5000000000 does not
    fit into int32 (-2147483648 to 2147483647)`. What a *version* cannot carry (a field that it lacks, a null that it
    does not allow) is an `UnsupportedVersionError` in its place, with the same beginning.

    Args:
        text: What is wrong, and where.
        path: The place in the message, such as "topics[0].num_partitions"; "" for the message itself.
        version: The version that was to be written, or None outside of messages.
    """

    def __init__(self, text: str, *, path: str = "", version: int | None = None) -> None:
        super().__init__(text)
        self.path = path
        self.version = version


class UnknownRequestError(UnsupportedVersionError):
    """The header of a request names an API or a version that is not known here.

    That is the peer's doing, who sent it; a version that *we* cannot write is a plain `UnsupportedVersionError`.
    """


def title_of(name: str, version: int) -> str:
    """How errors name a message: "CreateTopics v4 request", or "ConsumerProtocolAssignment v3"."""
    for kind in ("Request", "Response"):
        if name.endswith(kind):
            return f"{name.removesuffix(kind)} v{version} {kind.lower()}"
    return f"{name} v{version}"


def path_text(path: Sequence[str | int]) -> str:
    """A way to a value as text: "topics[0].name"."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def no_field(name: object, known: Iterable[str]) -> str:
    """That there is no such field, with the one that may have been meant."""
    from difflib import get_close_matches  # here, because nobody needs it who makes no mistake

    names = list(known)
    near = get_close_matches(name, names, 1) if isinstance(name, str) else []
    hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(names) or 'none'}"
    return f"no field {shortened(name)}; {hint}"


def shortened(value: object, show: Callable[[Any], str] = repr) -> str:
    """What an error shows of a value: its repr, but no megabytes; at worst the name of its type."""
    if isinstance(value, bytes | bytearray) and len(value) > _LONGEST:
        return f"<{len(value)} bytes>"
    try:
        text = show(value)
    except Exception:  # noqa: BLE001  (an int of too many digits, or somebody else's class)
        return f"an object of {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({type(value).__name__})"
