"""Fixtures for the tests of this package, wherever they are collected."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from kclient.htp.contract.fixtures import anyio_backend, asked_for, backend, environment, limited, sandbox
from kclient.htp.contract.marks import register
from kclient.htp.contract.report import describe
from kclient.htp.contract.watchdog import SECONDS, watched

__all__ = ["anyio_backend", "asked_for", "backend", "environment", "sandbox"]

_HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Called when the package is collected."""
    register(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each test of the contract ends in time, and tells the report what it is about."""
    seconds = float(config.getoption("htp_timeout", SECONDS))
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == _HERE:
            describe(item)
            if inspect.iscoroutinefunction(item.obj):
                item.obj = limited(item.obj, seconds)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Opening the store, also one that never answers, ends."""
    with watched(f"opening the store for {item.name}", _seconds(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Nor does a test block the others."""
    with watched(item.name, _seconds(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Nor does closing the store."""
    with watched(f"closing the store of {item.name}", _seconds(item)):
        return (yield)


def _seconds(item: pytest.Item) -> float:
    return float(item.config.getoption("htp_timeout", SECONDS))
