"""What the proofs of every protocol version share: the servers, and the count of what was proved."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.wire_session import Proved

_PROVED = pytest.StashKey[Proved]()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Name and address of the server that `ON_EACH_SERVER` asks for: Kafka 3.9.1, Kafka 4.3.1 or the gateway."""
    found = request.getfixturevalue(request.param)
    return request.param, found if isinstance(found, str) else found.bootstrap


@pytest.fixture(scope="session")
def proved(request: pytest.FixtureRequest) -> Proved:
    """Collects which versions of which APIs made a checked round trip; how many is said at the end of the run."""
    return request.config.stash.setdefault(_PROVED, defaultdict(set))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line a server: how many protocol versions were proved with it."""
    for name, versions in sorted(config.stash.get(_PROVED, {}).items()):
        apis = len({api for api, _ in versions})
        terminalreporter.write_line(f"{name}: {len(versions)} versions of {apis} APIs made a checked round trip")
