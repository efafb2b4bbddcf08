"""Simulates calls to servers over links (paper 004): scenarios, queues, monitors, one replication, results.

May touch: the policies and records of `rmgr.sched`, streams and parallel runs of `rmgr.sim`. Must not: place jobs, or know a paper.
"""
