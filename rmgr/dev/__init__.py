"""Clusters of real processes on one machine, for `rmgr dev`, tests and benches: ZooKeeper, Cassandra, WatchDogs, Starters.

`cluster` starts and ends them; `record` remembers them, `keeper` starts again what died. It starts daemons by their command, and must not
import one. It leaves no process behind.
"""
