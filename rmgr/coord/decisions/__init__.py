"""Derives decisions from facts: states of tasks, who leads, which nodes are lost, which work to keep, who may see and change what.

Pure functions from records to verdicts and duties. They may build multis of `ops`, but commit nothing and show nothing.
"""
