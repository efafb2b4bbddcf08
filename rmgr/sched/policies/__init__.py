"""Policies: orders of the queue and searches through it, one subject and its citations a file.

A policy reads a `View` and answers with a plan. It may use nouns, drafts and capacity; it must not read a clock, draw a number,
or know who carries the plan out.
"""
