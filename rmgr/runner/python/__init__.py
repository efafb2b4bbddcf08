"""Python workers: forked by the spawner, they take batches of calls, run them and send results.

The spawner's side is `workers`, the worker's own is `worker`. It loads users' code, and therefore nothing that reaches the cluster: no
store, no ZooKeeper.
"""
