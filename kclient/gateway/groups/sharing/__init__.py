"""Groups whose members read the same partitions (KIP-932): type `share`.

They are like consumer groups (`groups.consumers`, whose members, epochs, targets and rows they have), but nobody has a
partition alone: what a member is to have it has at once, and nobody has to give it up before. What they have read of
partitions is kept by the leaders of these (`gateway.shares`), not here.

- `group.py`: the state machine: heartbeats, deadlines.
- `membership.py`: takes the requests of members (with `groups.heartbeats`).
- `administration.py`: start offsets, and the end of a group, for administrators.
"""
