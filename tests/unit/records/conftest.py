"""Every test that asks for `face` runs once for each implementation."""

from __future__ import annotations

import pytest

from tests.unit.records.faces import COMPILED, FACES, Face


@pytest.fixture(params=FACES, ids=lambda face: face.name, scope="session")
def face(request: pytest.FixtureRequest) -> Face:
    """Each implementation in turn."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def twins() -> list[Face]:
    """Both implementations, to be compared; skipped where only one is there."""
    if COMPILED is None:
        pytest.skip("the compiled implementation is not built")
    return FACES
