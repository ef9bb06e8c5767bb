"""Which member of a group is to have which partitions, or tasks: the assignors of the coordinator (KIP-848, KIP-1071).

- `model.py`: what an assignor is told.
- `ranges.py`: `range`, neighbouring partitions of each topic.
- `uniform.py`: `uniform`, as many for each member, and as few moves as that allows; `uniform_mixed.py` does so where
  members read different topics.
- `table.py`: the assignors by their names.
- `simple.py`: `simple`, for share groups.
- `tasks.py`, `sticky_tasks.py`: `sticky`, for tasks of streams groups; `java_order.py`: which of equals comes first.

They decide as Kafka's do. Where Kafka goes through a hash map of partitions, whose order says nothing, members come in
the order in which they joined, topics in the order of their names, and partitions by their numbers.
"""
