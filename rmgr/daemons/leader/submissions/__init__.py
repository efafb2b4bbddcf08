"""Submissions from the outside in: followed, swept, ended, collected, kept as history; lost work is requeued here.

Placement hears of submissions through its own listener and never calls back.
"""
