"""The leader's work on submissions: follow, sweep, end, collect, keep as history, requeue lost work.

Placement is told of changed terms, and never calls back.
"""
