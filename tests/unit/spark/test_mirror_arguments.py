"""What a mirror refuses of its arguments, without asking a broker."""

from __future__ import annotations

from typing import Any

import pytest

from kclient.errors import ConfigError
from kclient.spark import mirror

BROKER = {"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": "1"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups": b"x"}, "groups is a regular expression of whole group ids, not b'x'"),
        ({"groups": "("}, "groups is a regular expression of whole group ids, not '\\(': missing"),
        ({"copy_settings": "no"}, "copy_settings is True or False, not 'no'"),
        ({"fail_on_data_loss": "false"}, "fail_on_data_loss is True or False, not 'false'"),
        ({"restart_recreated": 1}, "restart_recreated is True or False, not 1"),
        ({"dry_run": "no"}, "dry_run is True or False, not 'no'"),
        ({"rename": {"t": "__consumer_offsets"}}, "__consumer_offsets is Kafka's own, and nobody writes to it"),
        ({"topics": ["__transaction_state"]}, "__transaction_state is Kafka's own"),
        ({"target": {**BROKER, "transaction.timeout.ms": 9999}}, "transaction.timeout.ms is 10000 at least, not 9999"),
    ],
)
def test_arguments_that_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mirror(None, **{"source": BROKER, "target": BROKER, "topics": ["t"], "dry_run": True, **given})
