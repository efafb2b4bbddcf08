"""The vocabulary of the protocol: paths, keys, codecs of records, multis with outcomes, read-back, rights to znodes, the two ports.

All of `coord` builds on this room. It knows nouns of `rmgr.model`, but not what a multi is for.
"""
