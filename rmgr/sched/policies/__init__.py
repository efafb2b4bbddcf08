"""Policies: orders of the queue and searches through it, one subject with its citations per file.

A policy reads a `View` and answers with a plan. It may use nouns, drafts and capacity; it must not read a clock, draw random numbers
or know which driver carries the plan out.
"""
