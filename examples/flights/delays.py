"""What is worked out of the flights, whichever way they are read: the delays of each carrier."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Delays:
    """How many flights of a carrier were seen, and the minutes of delay of those that arrived."""

    flights: int = 0
    arrived: int = 0
    minutes: int = 0

    def add(self, delay: float | None) -> None:
        self.flights += 1
        if delay is not None:
            self.arrived += 1
            self.minutes += int(delay)

    @property
    def mean(self) -> float:
        return self.minutes / self.arrived if self.arrived else 0.0


class Statistics(defaultdict[str, Delays]):
    """The delays by carrier."""

    def __init__(self) -> None:
        super().__init__(Delays)

    def add(self, flight: Mapping[str, Any]) -> None:
        self[flight["carrier"]].add(flight["arr_delay"])

    def add_json(self, flight: bytes) -> None:
        self.add(json.loads(flight))


def statistics_of(flights: Iterable[Mapping[str, Any]]) -> Statistics:
    statistics = Statistics()
    for flight in flights:
        statistics.add(flight)
    return statistics


def merged(parts: Iterable[Statistics]) -> Statistics:
    whole = Statistics()
    for part in parts:
        for carrier, delays in part.items():
            total = whole[carrier]
            total.flights += delays.flights
            total.arrived += delays.arrived
            total.minutes += delays.minutes
    return whole
