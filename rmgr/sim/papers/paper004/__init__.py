"""Runs paper 004 again: job scheduling in Ninf (Takefusa, Nakada, Aida, Ogawa, Matsuoka, Nagashima; papers.md section 4).

May touch: `rmgr.sim.calls` and the report. Must not: know how calls are simulated.
"""

from rmgr.sim.papers.paper004.report import CHECKS, QUICK_SEEDS, SEEDS, report

__all__ = ["CHECKS", "QUICK_SEEDS", "SEEDS", "report"]
