"""How many examples a hypothesis test tries: its own number, scaled by the profile (HYPOTHESIS_PROFILE)."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(count: int, **others: Any) -> settings:
    """Settings for a test that tries `count` examples in the default profile, which tries 100 where nothing is said."""
    return settings(max_examples=max(count * settings().max_examples // 100, 1), **others)
