"""One simulated run: virtual time, machine, driver, execution, what happened, and a check of all that.

The driver calls `rmgr.sched` as the leader does. It writes no file and starts no process.
"""
