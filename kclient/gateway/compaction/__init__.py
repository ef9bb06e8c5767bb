"""Log compaction (`cleanup.policy=compact`): of each key the last record stays.

`cleaner.py` looks which logs are dirty (`dirty.py` decides) and has one after the other cleaned (`partition.py`), which
is reading what is there, making what remains of it (`cleaning.py`, `transactions.py`; the work per record is
`kclient.records`'), and having the store put that in the place of what was there, segment by segment (capability
`rewrite`). Where a store cannot do that, a compacted topic keeps every record.
"""

from kclient.gateway.compaction.cleaner import LogCleaner as LogCleaner
from kclient.gateway.compaction.cleaning import KeyNoting as KeyNoting
from kclient.gateway.compaction.cleaning import LastOfProducer as LastOfProducer
from kclient.gateway.compaction.cleaning import LogCleaning as LogCleaning

__all__ = ["KeyNoting", "LastOfProducer", "LogCleaner", "LogCleaning"]
