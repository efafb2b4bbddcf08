"""The multis: operations committed together, one builder each, grouped by the role that may commit them (submitter, Starter, leader, owner,
operator).

A builder takes records with their versions and returns a `Multi` with its proof. It decides nothing; `decisions` says which one is due.
"""
