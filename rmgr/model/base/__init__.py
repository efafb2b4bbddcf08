"""Words that every record uses: ids, units, spans, resources, versions of records, states and reasons.

It imports only `rmgr.errors`.
"""
