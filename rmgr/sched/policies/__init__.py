"""Policies: orders of the queue and searches through it, one idea and one citation a file; `gangs` share time.

A policy reads a `View` and answers with a plan. It may use nouns, drafts and capacity; it must not read a clock, draw a number,
or know who carries the plan out.
"""
