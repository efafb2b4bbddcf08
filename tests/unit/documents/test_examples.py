"""The tasks of the example applications compute right values, compared with published and closed-form ones, without a cluster."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.places import ROOT

EXAMPLES = ROOT / "deploy" / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=EXAMPLES, capture_output=True, text=True, timeout=60, check=False)


def dimer(fragments: ModuleType, distance: float, tilt_degrees: float) -> float:
    """Energy of a water dimer with a linear hydrogen bond along x, the acceptor's bisector tilted against it."""
    r, half, tilt = fragments.BOND_R0, fragments.ANGLE_0 / 2, math.radians(tilt_degrees)
    donor = ((0.0, 0.0, 0.0), (r, 0.0, 0.0), (r * math.cos(2 * half), r * math.sin(2 * half), 0.0))
    x, y = math.cos(tilt) * r * math.cos(half), -math.sin(tilt) * r * math.cos(half)
    z = r * math.sin(half)
    acceptor = ((distance, 0.0, 0.0), (distance + x, y, z), (distance + x, y, -z))
    return sum(fragments.pair_energy(donor, acceptor))


def test_the_water_dimer_has_the_energy_and_geometry_of_jorgensens_table() -> None:
    # J. Chem. Phys. 79, 926 (1983), TIP3P dimer: r(OO) = 2.74 A, angle 27 degrees, -6.50 kcal/mol
    fragments = load("fragments")
    best = min((dimer(fragments, r / 100, angle), r / 100, angle) for r in range(265, 285) for angle in range(60))
    energy, distance, angle = best
    assert abs(distance - 2.74) <= 0.01
    assert angle == 27
    assert math.isclose(energy, -6.50, abs_tol=0.005)


def test_a_molecule_at_rest_has_no_internal_energy() -> None:
    fragments = load("fragments")
    r, angle = fragments.BOND_R0, fragments.ANGLE_0
    at_rest = ((0.0, 0.0, 0.0), (r, 0.0, 0.0), (r * math.cos(angle), r * math.sin(angle), 0.0))
    stretched = ((0.0, 0.0, 0.0), (r + 0.1, 0.0, 0.0), at_rest[2])
    assert math.isclose(fragments.internal_energy(at_rest), 0.0, abs_tol=1e-12)
    assert math.isclose(fragments.internal_energy(stretched), 450.0 * 0.01, rel_tol=1e-9)


def test_the_water_file_is_what_its_script_makes_and_has_no_close_contacts() -> None:
    fragments = load("fragments")
    file = EXAMPLES / "water64.xyz"
    made = run("make_water.py").stdout.splitlines()
    kept = file.read_text(encoding="utf-8").splitlines()
    assert len(made) == len(kept)
    assert made[:2] == kept[:2]
    for ours, theirs in zip(made[2:], kept[2:], strict=True):  # another libm may round the last digit otherwise
        assert ours.split()[0] == theirs.split()[0]
        assert [float(v) for v in ours.split()[1:]] == pytest.approx([float(v) for v in theirs.split()[1:]], abs=2e-5)
    molecules = fragments.cut(fragments.read_xyz(file))
    assert len(molecules) >= 64
    nearest = min(math.dist(a, b) for i, m in enumerate(molecules) for other in molecules[:i] for a in m for b in other)
    assert nearest > 1.6


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not an .xyz file"),
        ("3\nx\nO 0 0\n", "not an .xyz file"),
        ("3\nx\nO 0 0 0\n", "promises 3 atoms"),
        ("1\nx\nO 0 0 0\n", "0 hydrogens"),
    ],
)
def test_a_bad_xyz_file_is_refused_with_a_sentence(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "bad.xyz"
    file.write_text(text, encoding="utf-8")
    ended = run("fragments.py", "--serial", "--xyz", str(file))
    assert ended.returncode == 1
    assert word in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_eigenvalues_are_right_with_the_worst_seven_points_in_a_row_missing() -> None:
    # 24 points on the half circle; the 7 next to each end of the interval are the worst to lose
    eigen = load("eigen")
    np = eigen.np
    cells, low, high = 24, 300.0, 500.0
    a, b = eigen.pencil(cells)
    problem = {"cells": cells, "block": np.random.default_rng(1).standard_normal((len(a), 6))}
    solutions = {j: eigen.solve(z, problem) for j, z in enumerate(eigen.quadrature_points(low, high, 24))}
    known = eigen.known_eigenvalues(cells)
    known = known[(known >= low) & (known <= high)]
    for first in (0, 8, 17):
        left = {j: x for j, x in solutions.items() if not first <= j < first + 7}
        values, residuals, dimension = eigen.rayleigh_ritz(a, b, left, low, high)
        good = residuals <= eigen.RESIDUAL
        assert dimension < len(a) // 2
        assert np.allclose(values[good], known, rtol=eigen.ACCURACY, atol=0.0), f"points {first}..{first + 6} missing"


def test_the_known_eigenvalues_are_those_of_the_pencil() -> None:
    eigen = load("eigen")
    np = eigen.np
    a, b = eigen.pencil(8)
    inverse = np.linalg.inv(np.linalg.cholesky(b))
    assert np.allclose(np.linalg.eigvalsh(inverse @ a @ inverse.T), eigen.known_eigenvalues(8), rtol=1e-11)


def test_eigen_says_so_when_too_few_points_came_back() -> None:
    ended = run("eigen.py", "--serial", "--cells", "24", "--drop", "0.85")
    assert ended.returncode == 1
    assert "too many points are missing" in ended.stderr


def test_the_lyapunov_exponent_of_the_full_logistic_map_is_ln_2() -> None:
    sweep = load("sweep")
    assert math.isclose(sweep.lyapunov(3.999999, 3.999999, iterations=200_000), math.log(2), rel_tol=0.01)
    assert sweep.lyapunov(2.5, 2.5) == pytest.approx(math.log(0.5), rel=1e-3)  # |2 - r| at the fixed point 1 - 1/r


def test_the_sweep_draws_a_map_of_the_size_asked_for(tmp_path: Path) -> None:
    ended = run("sweep.py", "--serial", "--columns", "20", "--rows", "5", "--iterations", "400", "--csv", str(tmp_path / "x.csv"))
    assert ended.returncode == 0, ended.stderr
    assert "100 points" in ended.stdout
    assert len((tmp_path / "x.csv").read_text(encoding="utf-8").splitlines()) == 101
