"""Policies by their names, and pipelines of stages from TOML tables.

It builds what a configuration names, out of `policies` and `parameters`; it reads no file, and runs no pass.
"""
