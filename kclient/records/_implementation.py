"""Chooses between the compiled and the interpreted implementation, once, when the package is imported."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from kclient.errors import ConfigError

if TYPE_CHECKING:
    from kclient.records.contract import Implementation

Name: TypeAlias = Literal["compiled", "interpreted"]

VARIABLE: Final = "KCLIENT_RECORDS"
"""Environment variable that forces an implementation by name."""

_MODULES: Final[dict[str, str]] = {
    "compiled": "kclient.records._compiled",
    "interpreted": "kclient.records._interpreted",
}


def load(name: str) -> Implementation:
    """The implementation of that name.

    Raises:
        ImportError: It is not built here.
    """
    return cast("Implementation", importlib.import_module(_MODULES[name]))


def choose() -> tuple[Name, Implementation]:
    """The implementation to use and its name: the one that the environment forces, else the compiled one if built.

    Raises:
        ConfigError: The environment variable names no implementation; an empty one counts as unset.
        ImportError: The implementation that it names is not built here, or what is built belongs to another version.
    """
    forced = os.environ.get(VARIABLE, "")
    if forced:
        if forced not in _MODULES:
            raise ConfigError(f"{VARIABLE} must be one of {', '.join(_MODULES)}, not {forced!r}.")
        return cast("Name", forced), _load_forced(forced)
    try:
        return "compiled", load("compiled")
    except ModuleNotFoundError as error:
        if error.name != _MODULES["compiled"]:
            raise
        return "interpreted", load("interpreted")
    except ImportError as error:
        raise ImportError(
            f"The compiled part of kclient.records was built for another version of kclient ({error}); install kclient "
            "again, or in a source tree run `python setup.py build_ext --inplace`.",
            name=error.name,
        ) from error


def _load_forced(name: str) -> Implementation:
    try:
        return load(name)
    except ImportError as error:
        raise ImportError(
            f"{VARIABLE}={name}, but that implementation cannot be loaded ({error}); install "
            "kclient where there is a C compiler, or unset the variable.",
            name=error.name,
        ) from error
