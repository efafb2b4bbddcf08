"""Recorded logs again: the same passes under the same policy, or the same work under another one.

It reads logs that `rmgr.sched.state.event_log` made, and compares decision by decision.
"""
