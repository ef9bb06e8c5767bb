"""What is uploaded can be built, installed and used, with a compiler and without."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests import build_packages


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_packages(tmp_path: Path) -> None:
    missing = [name for name in ("build", "twine") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}, which make setup installs")
    build_packages.main(tmp_path / "dist")
    tags = sorted(path.name.split("-", 2)[2] for path in (tmp_path / "dist").glob("*.whl"))
    assert len(tags) == 2
    assert tags[1] == "py3-none-any.whl"
