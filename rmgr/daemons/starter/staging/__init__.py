"""Files and values in and out of tasks: inputs ahead of their turn, uploads, outputs behind it, bounded in bytes.

It may read and write the store through `core.io` alone, and knows tasks only as the blocks of `core`.
"""
