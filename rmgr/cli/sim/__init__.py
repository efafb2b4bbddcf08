"""`rmgr sim`: the simulator's commands, each imported only when it is used.

The room turns options into runs of `rmgr.sim` and shows their results. It must not reach a cluster.
"""
