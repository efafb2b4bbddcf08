"""The words of the protocol: paths, keys, codecs of records, multis with their outcomes, read-back, rights of znodes, the two ports.

Everything in `coord` rests on this room. It knows nouns of `rmgr.model`, and nothing of what a multi is for.
"""
