"""Options in the address of a store: `embedded:./data?min_free_bytes=1000000000`."""

from __future__ import annotations

import re
from typing import Final

from kclient.arguments import shown
from kclient.errors import ConfigError

_OPTIONS: Final = re.compile(r"[a-z_]+=[^&?/]*(?:&[a-z_]+=[^&?/]*)*")


def split_options(address: str) -> tuple[str, dict[str, str]]:
    """An address without its options, and these; what does not look like options belongs to the address.

    Raises:
        ConfigError: An option is given twice.
    """
    before, mark, after = address.rpartition("?")
    if not mark or not _OPTIONS.fullmatch(after):
        return address, {}
    options: dict[str, str] = {}
    for option in after.split("&"):
        name, _, value = option.partition("=")
        if name in options:
            raise ConfigError(f"{shown(address)} gives {name} twice")
        options[name] = value
    return before, options
