"""Clusters of real processes on one machine, for `rmgr dev`, tests and benches: ZooKeeper, Cassandra, WatchDogs, Starters.

`cluster` starts them; `keeper` records them, ends them, and restarts those that died. This room starts daemons by their command, and must
not import one. It leaves no process behind.
"""
