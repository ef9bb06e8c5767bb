"""The fixtures of the contract's tests, and which of the tests a backend is not asked to pass."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial, wraps
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, NoReturn

import anyio
import pytest

from kclient.errors import ConfigError
from kclient.htp.contract.marks import FAULT, NEEDS
from kclient.htp.contract.report import NOT_CLAIMED, NOT_TESTABLE, VERDICT
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.contract.watchdog import SECONDS, in_time
from kclient.htp.port import faults_of
from kclient.htp.store import open_store

__all__ = ["Backend", "anyio_backend", "asked_for", "backend", "environment", "limited", "sandbox"]

_LOOPS: Final = ["asyncio", *(["trio"] if find_spec("trio") else [])]


class Backend(NamedTuple):
    """What is under test."""

    url: str
    capabilities: frozenset[str]
    faults: frozenset[str]
    """Which faults it can be made to have."""


@pytest.fixture(params=_LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The event loops: asyncio, and trio where it is installed."""
    return str(request.param)


@pytest.fixture(scope="session")
def backend(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Backend:
    """The backend, which is asked once what it claims."""
    url = pytestconfig.getoption("htp", None)
    if not url:
        _end(request.session, "the contract of HTP is tested over a store: name it, as --htp memory:contract")
    try:
        return in_time(partial(anyio.run, _ask, url), _seconds(pytestconfig))  # no event loop may be in use there
    except BaseException as error:  # noqa: BLE001 - whatever a vendor's backend raises
        _end(request.session, f"the store {url} cannot be opened: {type(error).__name__}: {error}")


def _end(session: pytest.Session, why: str) -> NoReturn:
    session.shouldfail = why  # a process of pytest-xdist hands this on, and nothing else
    pytest.exit(why, returncode=4)


async def _ask(url: str) -> Backend:
    try:
        store = open_store(url, faults=True)
    except ConfigError:
        store = open_store(url)
    async with store:
        faults = faults_of(store)
        return Backend(url, frozenset(store.broker.capabilities), frozenset(faults.kinds if faults else ()))


@pytest.fixture(autouse=True)
def asked_for(request: pytest.FixtureRequest, backend: Backend) -> None:
    """Skip what the backend does not claim, and what cannot be tested with it."""
    missing = _missing(request, NEEDS, backend.capabilities)
    if missing:
        request.node.user_properties.append((VERDICT, NOT_CLAIMED))
        pytest.skip(f"{NOT_CLAIMED}: {', '.join(missing)}")
    missing = _missing(request, FAULT, backend.faults)
    if missing:
        request.node.user_properties.append((VERDICT, NOT_TESTABLE))
        pytest.skip(f"{NOT_TESTABLE}: the store offers no fault {', '.join(missing)}")


def _missing(request: pytest.FixtureRequest, mark: str, there: frozenset[str]) -> list[str]:
    return sorted({name for each in request.node.iter_markers(mark) for name in each.args} - there)


@pytest.fixture
async def sandbox(request: pytest.FixtureRequest, backend: Backend, asked_for: None) -> AsyncIterator[Sandbox]:
    """An open store with an empty domain; it can be made to fail if the test needs that."""
    faulty = request.node.get_closest_marker(FAULT) is not None
    seconds = _seconds(request.config)
    opened = Sandbox.opened(backend.url, **({"faults": True} if faulty else {}))
    with anyio.fail_after(seconds):
        made = await opened.__aenter__()
    try:
        yield made
    finally:
        with anyio.fail_after(seconds):
            await opened.__aexit__(None, None, None)


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of another process that opens the same store: it finds what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _seconds(config: pytest.Config) -> float:
    """How long a test may take."""
    return float(config.getoption("htp_timeout", SECONDS))


def limited(test: Callable[..., Awaitable[None]], seconds: float) -> Callable[..., Awaitable[None]]:
    """A test that fails when it takes too long, whatever plugins are installed."""

    @wraps(test)
    async def within(*args: Any, **fixtures: Any) -> None:
        with anyio.fail_after(seconds):
            await test(*args, **fixtures)

    return within
