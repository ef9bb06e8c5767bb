"""Fixtures for the tests of this package, wherever they are collected."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from kclient.htp.contract.fixtures import anyio_backend, asked_for, backend, environment, limited, sandbox
from kclient.htp.contract.marks import register
from kclient.htp.contract.report import describe

__all__ = ["anyio_backend", "asked_for", "backend", "environment", "sandbox"]

_HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Called when the package is collected."""
    register(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test of the contract ends in time, and tells the report what it is about."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == _HERE:
            describe(item)
            if inspect.iscoroutinefunction(item.obj):
                item.obj = limited(item.obj)
