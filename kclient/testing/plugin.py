"""The pytest plugin: the fixture `kclient_broker`, and the options `--htp` and `--htp-timeout` of the contract of HTP.

Imports nothing heavy, as pytest loads it in every run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options are here because pytest does not ask a package that it is to collect by its name."""
    group = parser.getgroup("kclient")
    group.addoption(
        "--htp",
        metavar="URL",
        help="the store whose backend is tested: pytest --pyargs kclient.htp.contract --htp URL",
    )
    group.addoption(
        "--htp-timeout",
        metavar="SECONDS",
        type=_seconds,
        default=120.0,
        help="how long a test of the contract may take, and the store to open or close (default: 120)",
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise ValueError(text)
    return seconds


def pytest_configure(config: pytest.Config) -> None:
    """With `--htp`, print the table of verdicts at the end."""
    url = config.getoption("htp")
    if url:
        from kclient.htp.contract.report import ContractReport

        config.pluginmanager.register(ContractReport(url), "kclient-htp-contract")


@pytest.fixture
def kclient_broker() -> Iterator[str]:
    """The address of an empty broker in memory, for this test alone: pass it as `bootstrap_servers`."""
    from kclient.testing.broker import memory_broker

    with memory_broker() as address:
        yield address
