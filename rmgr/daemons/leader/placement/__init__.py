"""Scheduling: waiting jobs, passes of the policies, orders that carry their decisions out, the rebuild after an election.

Policies are pure (`rmgr.sched`); this package commits their decisions to ZooKeeper. Only the leader's loop changes the plan.
"""
