"""Serves beside every daemon's work: metrics, health, rights of callers, secrets, limits, self-checks.

It knows no Starter, no leader and no gateway.
"""
