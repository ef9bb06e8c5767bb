"""A hostile client beside a quiet one: the quiet one is served, the gateway's memory stays bounded, and nothing fails.

`python -m benchmarks.neighbours` measures; here the limits are generous, since other tests run at the same time.
`test_gateway_slices.py` counts instead, which nobody disturbs.
"""

from __future__ import annotations

import sys

import pytest

from tests.hostile_clients import ATTACKS
from tests.neighbourhood import Outcome, suffer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="measures in /proc")

MEDIAN_MS, P99_MS, WORST_MS = 100.0, 400.0, 1000.0
"""A quiet machine shows 10, 40 and 100."""
MEMORY = 900 << 20
SOME = [
    "metadata of 500k names",
    "fetch of 200k partitions",
    "zstd bombs into a gzip topic",
    "parked fetches of 18 MB on one connection",
    "20 half frames of 12 MiB",
    "acks=0 while partitions open",
    "names of settings that nobody knows",
    "OffsetForLeaderEpoch of 200k partitions",
    "2,000 joins of a group",
]


def check(name: str, outcome: Outcome) -> None:
    assert outcome.cuts == 0
    for kind, waited in outcome.waited.items():
        assert waited.count > 3, kind
        assert waited.median < MEDIAN_MS, (kind, waited)
        assert waited.own_p99 < P99_MS, (kind, waited)
        assert waited.own_worst < WORST_MS, (kind, waited)
    if ATTACKS[name].keeps_memory:
        assert outcome.resident_peak - outcome.resident_before < MEMORY
    assert not [line for line in outcome.log if "Traceback" in line or "ERROR" in line]


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_the_quiet_client_is_served(name: str) -> None:
    check(name, suffer(name, 2.0, 0.3))


@pytest.mark.long
@pytest.mark.parametrize("name", ATTACKS)
def test_the_quiet_client_is_served_beside_any(name: str) -> None:
    check(name, suffer(name, 5.0))
