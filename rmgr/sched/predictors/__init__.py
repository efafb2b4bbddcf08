"""Predicts how long a call takes at a server: computing and transfer, from measurements and learnt performance.

May touch: the records and the view of a draft. Must not: decide, remember, or read anything that is no record.
"""
