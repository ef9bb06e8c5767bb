"""Java's JAAS format, as in `sasl.jaas.config`: one login module with its options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kclient.config.secret import Secret
from kclient.errors import ConfigError

__all__ = ["JaasEntry", "parse_jaas"]

_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/                                       # nothing
    | (?P<quoted>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
    | (?P<word>[A-Za-z0-9_$.\-\u00a0-\U0010ffff]+)
    | (?P<sign>[=;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([0-3][0-7]{2}|[0-7]{1,2})|(.))", re.DOTALL)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """A login module and its options."""

    module: str
    """Its class without the package: `PlainLoginModule`."""
    options: Mapping[str, Secret]
    """Every value is kept as a secret, since some are."""


def parse_jaas(text: str) -> JaasEntry:
    """Read `MODULE required NAME="VALUE" ... ;`, as Java does.

    Raises:
        ConfigError: If it is not of that form. No part of the text is shown: passwords get into any place.
    """
    entries = list(_entries(_tokens(text)))
    if len(entries) != 1:
        raise _malformed(f"it has {len(entries)} login modules, and should have one")
    return entries[0]


def _entries(tokens: Iterator[tuple[str, str]]) -> Iterator[JaasEntry]:
    for kind, module in tokens:
        if kind == "sign":
            raise _malformed("it should begin with the class of a login module")
        _, flag = next(tokens, ("", ""))
        if flag.lower() not in _FLAGS:
            raise _malformed(f"after the login module comes a flag, one of {', '.join(_FLAGS)}")
        yield JaasEntry(module.rpartition(".")[2], dict(_options(tokens)))


def _options(tokens: Iterator[tuple[str, str]]) -> Iterator[tuple[str, Secret]]:
    """The options up to the semicolon."""
    for number, (kind, name) in enumerate(tokens, 1):
        if kind == "sign":
            if name == ";":
                return
            raise _malformed(f"option {number} has no name")
        equals, value = next(tokens, ("", "")), next(tokens, ("", ""))
        if equals != ("sign", "=") or value[0] in ("sign", ""):
            # its name is not shown: it may be the rest of a password that was not quoted well
            raise _malformed(f"option {number} has no value; values are quoted, after an equals sign")
        yield name, Secret(value[1])
    raise _malformed("it does not end with a semicolon")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _malformed("a quote is not closed, or there is an unexpected character")
        position = match.end()
        if match["quoted"]:
            yield "quoted", _ESCAPE.sub(_unescape, match["quoted"][1:-1])
        elif match.lastgroup:
            yield match.lastgroup, match[match.lastgroup]


def _unescape(match: re.Match[str]) -> str:
    if match[1]:
        return chr(int(match[1], 8))
    return _LETTERS.get(match[2], match[2])


def _malformed(reason: str) -> ConfigError:
    return ConfigError(f'sasl.jaas.config: {reason}. It looks like: MODULE required username="..." password="...";')
