"""What a test of the contract is about, and what it needs of the backend."""

from __future__ import annotations

from typing import Final

import pytest

__all__ = ["FAULT", "NEEDS", "SUBJECT", "needs", "needs_fault", "register", "subject"]

SUBJECT: Final = "htp_subject"
NEEDS: Final = "htp_needs"
FAULT: Final = "htp_fault"


def subject(name: str) -> pytest.MarkDecorator:
    """The row of the report that a test counts in."""
    return pytest.mark.htp_subject(name)


def needs(*capabilities: str) -> pytest.MarkDecorator:
    """The test is skipped, as not claimed, unless the backend has these capabilities (`CAP_*`)."""
    return pytest.mark.htp_needs(*capabilities)


def needs_fault(*kinds: str) -> pytest.MarkDecorator:
    """The test is skipped, as not testable here, unless the store can have these faults (`FAULT_*`)."""
    return pytest.mark.htp_fault(*kinds)


def register(config: pytest.Config) -> None:
    """Tell pytest of the marks."""
    config.addinivalue_line("markers", f"{SUBJECT}(name): the row of the report that a test counts in")
    config.addinivalue_line("markers", f"{NEEDS}(*capabilities): what the backend has to claim")
    config.addinivalue_line("markers", f"{FAULT}(*kinds): the faults that the store has to offer")
