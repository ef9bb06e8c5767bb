"""A member of a share group (KIP-932): records that are acquired for it one by one, and acknowledged one by one."""
