"""The keys of the gateway's rows, and the table that tells all of them."""

from __future__ import annotations

import re

from kclient.gateway import rows
from kclient.gateway.rows import keys

LEASES = {keys.LEASE, keys.FIRST_LEASES}


def test_the_table_tells_every_key() -> None:
    assert rows.__doc__ is not None
    told = {re.match(r"[a-z/-]*", each)[0] for each in re.findall(r"^`([^`]+)` ", rows.__doc__, re.M)}  # type: ignore[index]
    there = {key for name, key in vars(keys).items() if name.isupper() and isinstance(key, str)}
    assert told == (there - LEASES)
