"""Parts that pictures share: canvas and axes, scales of time, and the series of runs and sweeps.

`canvas` is the only user of matplotlib; `timing` chooses units; the others read results. It must not import a picture.
"""
