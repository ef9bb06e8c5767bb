"""Every fuzz target on its seeds and on damaged seeds: the same ones in every run, for a few seconds."""

from __future__ import annotations

from random import Random
from types import ModuleType

import pytest

from tests.fuzz import fuzz_frames, fuzz_messages, fuzz_patterns, fuzz_properties, fuzz_records
from tests.fuzz.mutation import mutated

RUNS = [
    (fuzz_messages, 6000),
    (fuzz_frames, 6000),
    (fuzz_records, 15000),
    (fuzz_properties, 1000),
    (fuzz_patterns, 1000),
]


@pytest.mark.parametrize(("target", "runs"), RUNS, ids=lambda value: getattr(value, "__name__", ""))
def test_fuzz_targets(target: ModuleType, runs: int) -> None:
    random = Random(20260101)
    seeds = target.seeds()
    for seed in seeds:
        target.check(seed)
    for _ in range(runs):
        data = mutated(random.choice(seeds), random)
        try:
            target.check(data)
        except Exception as error:
            error.add_note(f"{target.__name__}.check(bytes.fromhex({data.hex()!r}))")
            raise
