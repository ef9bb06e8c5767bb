"""What the proofs of every protocol version share: the servers, and the count of what was proved."""

from __future__ import annotations

import pytest

from tests.proved import Proved, proved_of


@pytest.fixture
def server(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Name and address of the server that `ON_EACH_SERVER` asks for: Kafka 3.9.1, Kafka 4.3.1 or the gateway."""
    found = request.getfixturevalue(request.param)
    return request.param, found if isinstance(found, str) else found.bootstrap


@pytest.fixture(scope="session")
def proved(request: pytest.FixtureRequest) -> Proved:
    """Collects which versions of which APIs made a checked round trip; how many is said at the end of the run."""
    return proved_of(request.config)
