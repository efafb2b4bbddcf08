"""Values that paper 004 prints: tables 3 and 4, in the names of the scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

POLICIES = ("rr", "load", "load+l", "loth", "loth+l", "loth+t", "loth+lt")
CASES = ("A", "B")


class _Measured(NamedTuple):
    """A row of table 3: seconds, utilisation of servers A (400 Mops) and B (40), MB/s of the transfers to them."""

    computing_s: float
    transfer_s: float
    total_s: float
    busy_a: float
    busy_b: float
    throughput_a: float
    throughput_b: float


class Modelled(NamedTuple):
    """A row of table 4, decoded: the paper's column A(400) is the slow server, B(40) the fast one (papers.md 4.4)."""

    computing_s: float
    transfer_s: float
    total_s: float
    busy_slow: float
    busy_fast: float


#: By (policy, case).
TABLE_3: Mapping[tuple[str, str], _Measured] = {
    ("rr", "A"): _Measured(2.879, 14.821, 18.269, 0.009, 0.111, 0.189, 0.960),
    ("load", "A"): _Measured(0.421, 63.051, 65.879, 0.080, 0.217, 0.172, 0.864),
    ("load+l", "A"): _Measured(0.409, 65.956, 67.935, 0.121, 0.134, 0.139, 0.956),
    ("loth", "A"): _Measured(15.599, 16.434, 32.849, 0.136, 0.099, 0.117, 0.988),
    ("loth+l", "A"): _Measured(13.396, 21.050, 35.264, 0.120, 0.189, 0.127, 0.952),
    ("loth+t", "A"): _Measured(19.831, 8.459, 28.762, 0.107, 0.266, 0.130, 0.918),
    ("loth+lt", "A"): _Measured(7.562, 21.992, 30.588, 0.115, 0.227, 0.133, 0.927),
    ("rr", "B"): _Measured(2.303, 10.725, 13.606, 0.015, 0.001, 0.152, 1.0760),
    ("load", "B"): _Measured(0.405, 53.512, 55.325, 0.154, 0.051, 0.163, 0.994),
    ("load+l", "B"): _Measured(0.392, 54.299, 57.115, 0.088, 0.030, 0.138, 1.030),
    ("loth", "B"): _Measured(6.941, 5.263, 12.590, 0.100, 0.034, 0.123, 1.041),
    ("loth+l", "B"): _Measured(4.822, 12.964, 18.407, 0.093, 0.129, 0.129, 0.997),
    ("loth+t", "B"): _Measured(7.370, 8.485, 16.407, 0.098, 0.146, 0.140, 0.965),
    ("loth+lt", "B"): _Measured(3.641, 9.613, 13.680, 0.095, 0.137, 0.135, 0.978),
}

#: By (policy, case).
TABLE_4: Mapping[tuple[str, str], Modelled] = {
    ("rr", "A"): Modelled(2.314, 14.339, 16.654, 0.538, 0.130),
    ("load", "A"): Modelled(1.689, 9.375, 11.064, 0.387, 0.148),
    ("load+l", "A"): Modelled(0.711, 5.499, 6.210, 0.309, 0.155),
    ("loth", "A"): Modelled(0.377, 3.752, 4.129, 0.248, 0.162),
    ("loth+l", "A"): Modelled(0.423, 4.010, 4.433, 0.256, 0.161),
    ("loth+t", "A"): Modelled(1.002, 6.981, 7.983, 0.346, 0.151),
    ("loth+lt", "A"): Modelled(0.908, 6.783, 7.691, 0.339, 0.152),
    ("rr", "B"): Modelled(2.145, 11.527, 13.672, 0.418, 0.117),
    ("load", "B"): Modelled(0.964, 5.726, 6.690, 0.293, 0.130),
    ("load+l", "B"): Modelled(0.800, 5.423, 6.223, 0.291, 0.130),
    ("loth", "B"): Modelled(0.374, 3.554, 3.928, 0.247, 0.135),
    ("loth+l", "B"): Modelled(0.379, 3.575, 3.954, 0.248, 0.135),
    ("loth+t", "B"): Modelled(0.612, 4.701, 5.313, 0.272, 0.132),
    ("loth+lt", "B"): Modelled(0.636, 4.816, 5.452, 0.275, 0.132),
}
