"""Groups of Kafka Streams instances (KIP-1071): type `streams`.

Their members bring along a topology, and are given tasks of it instead of partitions: what a task reads, and keeps its
state in, follows from the topology. The coordinator sees to it that the topics are there which the application keeps
for itself.

- `configuring.py`: what follows from it and from the topics that there are.
- `states.py`: the states of a group and of its members.
- `member.py`, `reconciling.py`: a member, and its next step to what it is to have.
- `roster.py`: the members, and which process has which task.
- `progress.py`, `group.py`: the state machine: targets (with `groups.progress`); heartbeats, commits.
- `endpoints.py`: who has the partitions of a task, for queries of applications among themselves.
- `membership.py`: takes the requests of members (with `groups.heartbeats`).
- `creating.py`: makes internal topics that are missing.
"""
