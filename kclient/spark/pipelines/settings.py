"""Settings of clients as a pipeline's workers get them: names with dots, and values as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kclient.arguments import shown
from kclient.config.secret import Secret
from kclient.errors import ConfigError


def as_flag(value: Any, name: str) -> bool:
    """It as it is. Raises `ConfigError` where it is neither True nor False: `"no"` would be taken for yes."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is True or False, not {shown(value)}")
    return value


def text_settings(settings: Mapping[str, Any], what: str) -> dict[str, str]:
    """A client's settings, by their Java names.

    Args:
        settings: What the user gave; names may have underscores.
        what: Whose they are, as errors call it: `an archive`, say.

    Raises:
        ConfigError: They are no mapping, or a value is no text and no number.
    """
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise ConfigError(f"settings of {what} are a mapping of names to values, not {shown(settings)}")
    return {name.replace("_", "."): _text_of(value, what) for name, value in settings.items()}


def _text_of(value: Any, what: str) -> str:
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float | Path):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    raise ConfigError(f"a setting of {what} is text or a number, since it goes to the workers; not {shown(value)}")
