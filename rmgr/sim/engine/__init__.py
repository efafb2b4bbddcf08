"""One simulated run: virtual time, machine, driver, execution, outcomes, and a check of the whole.

The driver calls `rmgr.sched` as the leader does. This room writes no file and starts no process.
"""
