"""NOUNS: the pure data of rmgr. No clock, no randomness, no IO, no logging in this package.

Records that are stored: `submission`, `block`, `node`, `queue`, `identity`, with the words of `base` and `states`; for people: `views`;
messages that are sent and never stored: `frames`, `turns`, `line`, as frames of a `stream`; live calls: `interface`, `arrays`, `servers`.
Every room above may import them; they import only `rmgr.errors`.
"""
