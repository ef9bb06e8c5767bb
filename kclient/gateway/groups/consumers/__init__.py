"""Groups whose partitions the coordinator assigns (KIP-848): type `consumer`.

- `states.py`: the states of a group and of what a member has, and which may follow which.
- `member.py`: a member; `reconciling.py`: its next step from what it has to what it is to have.
- `roster.py`: all members of a group, who has which partition, and what they read.
- `progress.py`: of what a new target is worked out, and where members are with it (what other types have in common with
  it: `groups.progress`); `group.py`: heartbeats, commits: the two halves of the state machine.
- `mixed.py`: members of the classic protocol, while a live group is migrated.
- `storing.py`: how rows are made; `groups.changed_rows`: which have changed, and who waits for them.
- `admission.py`: whether there is memory for a member.
- `membership.py`: takes the requests of members.
"""
