"""The blocking producer has the names, arguments and documentation of the async one."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import kclient
from kclient import sync

CALLS = sorted(name for name in vars(kclient.Producer) if not name.startswith("_"))


def parameters(cls: type, name: str) -> list[Any]:
    return [
        (parameter.name, parameter.kind, parameter.default, parameter.annotation)
        for parameter in inspect.signature(getattr(cls, name)).parameters.values()
    ]


def test_the_same_names() -> None:
    assert sorted(name for name in vars(sync.Producer) if not name.startswith("_")) == CALLS


@pytest.mark.parametrize("name", ["__init__", *CALLS])
def test_the_same_arguments_and_results(name: str) -> None:
    assert parameters(sync.Producer, name) == parameters(kclient.Producer, name)
    blocking, asynchronous = (
        inspect.signature(getattr(cls, name)).return_annotation for cls in (sync.Producer, kclient.Producer)
    )
    assert blocking == asynchronous.replace("AsyncIterator", "Iterator")


@pytest.mark.parametrize("name", CALLS)
def test_both_are_documented(name: str) -> None:
    assert inspect.getdoc(getattr(sync.Producer, name))
    assert inspect.getdoc(getattr(kclient.Producer, name))
