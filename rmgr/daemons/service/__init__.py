"""What every daemon offers beside its work: metrics, health, rights of callers, secrets, limits, looking at itself.

It knows no Starter, no leader and no gateway.
"""
