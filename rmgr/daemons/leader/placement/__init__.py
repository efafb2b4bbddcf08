"""Scheduling: jobs that wait, passes of the policies, orders that carry their decisions out, rebuilding after an election.

Policies are pure (`rmgr.sched`); here is what their decisions cost in ZooKeeper. Its loop alone changes the plan.
"""
