"""Builds each multi of a gateway's client anew, from what the client asked and what stands in ZooKeeper.

It trusts nothing that the client built. It uses `ops`, `decisions` and `validity`, and makes no change that they do not know.
"""
