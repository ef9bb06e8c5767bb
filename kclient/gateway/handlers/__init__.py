"""The handlers of requests: one module per API family.

A handler declares the API that it answers and the versions that it serves; `handler` says what it may return, `table`
holds all of them. `kclient.gateway.assembly` makes each of what it uses.
"""
