"""What every daemon offers: metrics, health, rights of callers, secrets, limits, self-checks.

It knows no Starter, leader or gateway.
"""
