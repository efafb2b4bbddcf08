"""The words that people type: durations and sizes, moments, selectors, lines of scripts, the words of other systems.

Pure translations of text; errors name the word. The room uses the nouns, and must not open a session, read the
cluster, or draw.
"""
