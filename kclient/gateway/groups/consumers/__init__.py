"""Groups whose partitions the coordinator assigns (KIP-848): type `consumer`.

- `states.py`: the states of a group and of what a member has, and which may follow which.
- `member.py`: a member; `reconciling.py`: its next step from what it has to what it is to have.
- `roster.py`: all members of a group, who has which partition, and what they read.
- `targets.py`: when a new target is worked out, and of what.
- `group.py`: the state machine: heartbeats, deadlines, commits.
- `storing.py`: which rows have changed, and who waits for them.
- `membership.py`: takes the requests of members.
"""
