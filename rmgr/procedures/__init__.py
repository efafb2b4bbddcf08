"""Procedures over the two ports (Coordinator, Store) that the client, daemons and commands share.

Each file carries out one procedure of the protocol: create or read a cluster's tree, read a snapshot, cancel tasks, hold
or release a submission, delete outputs, invite machines, revoke keys. This room may use `runtime`, `coord` and `model`.
It must not import the client, a daemon or a command, and it keeps no state between calls except caches that expire.
"""
