"""What `inspect.signature` and `help` say about the classes of the compiled implementation."""

from __future__ import annotations

import inspect
from typing import Any


class TwinSignature:
    """The signature of a compiled class: that of its twin in Python, with all types.

    A subclass with a constructor of its own does not inherit it.

    Args:
        name: Name of the class.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[Any]) -> inspect.Signature:
        from kclient.records import _interpreted

        for cls in owner.__mro__:
            if cls.__dict__.get("__signature__") is self:
                return inspect.signature(getattr(_interpreted, self._name))
            if "__init__" in cls.__dict__ or "__new__" in cls.__dict__:
                break
        raise AttributeError("__signature__")
