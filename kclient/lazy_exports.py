"""Names that a package exports and imports once they are used, so that it costs nothing to have them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, exports: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        package: Its name.
        exports: The module of each name.
    """
    names = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        value = names[name] = getattr(importlib.import_module(exports[name]), name)
        return value

    return get, lambda: sorted({*names, *exports})
