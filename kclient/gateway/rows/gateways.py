"""The row of a gateway: which run of it there is, and where its clients find it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kclient.htp.rows import GREATEST_EPOCH, dump, object_of_format, optional_string, seal, string, unsealed, whole
from kclient.records.bounds import INT16_MAX, INT32_MAX

_FORMAT: Final = 1
_GREATEST_PORT: Final = 65535


class Endpoint(NamedTuple):
    """Where clients of one listener find a gateway."""

    host: str
    port: int
    security_protocol: str
    """How they connect: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""


class FeatureRange(NamedTuple):
    """The levels of a feature that a gateway can do, both included."""

    lowest: int
    highest: int


class GatewayRow(NamedTuple):
    """A gateway that serves the store."""

    node_id: int
    run: str
    """Another one for each of its starts."""
    epoch: int
    """Of the lease under which this run has registered."""
    endpoints: Mapping[str, Endpoint]
    """By the name of the listener."""
    rack: str | None = None
    features: Mapping[str, FeatureRange] = {}
    """By name; what is not in it, it cannot do."""

    def encode(self) -> bytes:
        """The row."""
        fields = {
            "format": _FORMAT,
            "node": self.node_id,
            "run": self.run,
            "epoch": self.epoch,
            "listeners": {
                name: {"host": at.host, "port": at.port, "security": at.security_protocol}
                for name, at in self.endpoints.items()
            },
            "rack": self.rack,
            "features": {name: list(levels) for name, levels in self.features.items()},
        }
        return seal(dump(fields))

    @classmethod
    def decode(cls, row: bytes) -> GatewayRow:
        """What a row says. Raises `ValueError` if it says nothing sensible."""
        fields = object_of_format(unsealed(row), _FORMAT)
        try:
            return cls(
                whole(fields["node"], 0, INT32_MAX),
                string(fields["run"]),
                whole(fields["epoch"], 0, GREATEST_EPOCH),
                {name: _endpoint(at) for name, at in fields["listeners"].items()},
                optional_string(fields["rack"]),
                {name: _levels(levels) for name, levels in fields["features"].items()},
            )
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{row[:200]!r}: {error!r}") from error


def _endpoint(fields: Mapping[str, Any]) -> Endpoint:
    return Endpoint(string(fields["host"]), whole(fields["port"], 0, _GREATEST_PORT), string(fields["security"]))


def _levels(levels: Any) -> FeatureRange:
    lowest, highest = (whole(each, 0, INT16_MAX) for each in levels)
    return FeatureRange(lowest, highest)
