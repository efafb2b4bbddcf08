"""Time-sharing on the virtual clock: the slot simulator of the queue tree, its workloads, its batch comparison, the messages it would send.

Plain slots and tasks, not the ordinary driver: what paper 002 measured. It knows `rmgr.sched.tree` and streams of random numbers; it may
not decide anything that the tree does not decide. Jobs under the policy `dqt` run in `rmgr.sim.engine.driver`, on the same tree.
"""
