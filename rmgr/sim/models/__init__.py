"""Workload models. Jobs are drawn from named random streams, so that one seed gives every policy the same workload.

A model may use `sim/workload`, queue classes and nouns. It must not import the engine or a policy.
"""
