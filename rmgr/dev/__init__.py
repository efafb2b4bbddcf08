"""Clusters of real processes on one machine, for `rmgr dev`, tests and benches: ZooKeeper, Cassandra, WatchDogs, Starters.

`cluster` starts them; `keeper` has their record, ends them, and starts again what died. It starts daemons by their command, and must not
import one. It leaves no process behind.
"""
