"""The partitions of share groups (KIP-932): which records were delivered to whom, and what became of them.

Share groups read partitions together: each record goes to one of the members, who acknowledges it. The leader of a
partition keeps what a group has delivered of it, in memory, and in a row of its own (`rows/share_partitions.py`).
"""
