"""NOUNS: the pure data of rmgr. No clock, no randomness, no IO, no logging in this package."""
