"""Topics: which there are, what they are set to, and how they are made, changed and removed.

- `record.py`: one topic; `table.py`: where topics are found, by name and by id; `names.py`: how they may be called.
- `catalogue.py`: creates, grows, alters and deletes them, one change of a topic at a time, and calls the others.
- `loading.py`: makes topics of their rows, at the start and afterwards.
- `settings.py`: the settings in force, told to their partitions.
- `remains.py`: what creations and deletions leave in the store, until it has gone.
- `refresh.py`: what the row of a topic says where that is not known, or where another gateway has changed it.
- `followed.py`: tells the catalogue which rows others have changed.
"""
