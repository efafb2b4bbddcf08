"""Policies of users, in a process of their own with limits of time and memory.

The parent believes nothing that the child says before it is checked.
"""
