"""The contract of HTP as tests: what a backend must do, run against a store by its URL.

    pip install 'htp-kclient[contract]'
    pytest --pyargs kclient.htp.contract --htp URL

A backend is certified for what it claims (`Broker.capabilities`) if no test fails; what it does not claim is skipped,
and the table at the end says so. The store may hold other content: each test works in a domain, and below a prefix of
rows and leases, of its own, and deletes them afterwards. What cannot be deleted stays: rows of leases that were given
up, and the prefixes whose changes were followed (one for all, and one for each event loop of each run).

- `messages`: the messages that are sent, and their framing.
- `sandbox`: the store of one test.
- `marks`: what a test is about, and what it needs of the backend.
- `report`: the table.
"""

from __future__ import annotations
