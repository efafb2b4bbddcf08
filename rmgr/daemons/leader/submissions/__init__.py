"""Submissions from the outside in: followed, swept, ended, collected, kept as history; lost work is requeued here.

Placement hears of changed terms, and never calls back.
"""
