"""Transactions: the state machine of a transactional id, and the coordinator that runs them.

`Transaction` decides, without I/O or clock. See `docs/internals/transactions.md`.
"""
