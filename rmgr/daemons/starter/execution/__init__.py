"""Slots: which task runs where, what holds a slot, and what becomes of an ended attempt.

It hands tasks to runners and takes their ends. It does not decide what a node claims; `pull` does.
"""
