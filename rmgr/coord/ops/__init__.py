"""The multis: what is committed together, one builder each, grouped by whose right it is (submitter, Starter, leader, owner, operator).

A builder takes records with their versions and returns a `Multi` with its proof. It decides nothing; `decisions` says which one is due.
"""
