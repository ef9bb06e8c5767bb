"""For tests of code that uses kclient: a broker in the process.

The pytest plugin is found by itself where the package is installed, and gives the fixture `kclient_broker`:

```python
def test_orders(kclient_broker: str) -> None:
    with kclient.sync.Producer(bootstrap_servers=kclient_broker) as producer: ...
```

`kclient.testing.cancellation` cancels a coroutine at each of its checkpoints in turn, and `kclient.testing.faults` is a
byte stream that cuts, delays, splits and merges.

Each test gets a broker of its own with nothing in it; its contents are forgotten afterwards.
"""

from __future__ import annotations

from kclient.testing.broker import memory_broker

__all__ = ["memory_broker"]
