#!/usr/bin/env python3
"""Makes the water cluster of fragments.py: molecules on a jittered cubic lattice at liquid density, the same file every time.

How: oxygens on a cubic lattice with the spacing of liquid water at 25 C (0.997 g/cm3, so 3.107 Angstrom), each moved by
up to 0.15 Angstrom a coordinate. Each molecule has TIP3P geometry (r(OH) = 0.9572 Angstrom, angle 104.52 degrees: Jorgensen et al.,
J. Chem. Phys. 79, 926 (1983)), stretched and bent a little (normal, 0.02 Angstrom and 3 degrees) so that its internal
energy is not zero. Of 60 random orientations it takes the one of lowest electrostatic energy with the molecules placed before it;
one more round over all of them follows. Orientations with a close contact (a hydrogen nearer than 1.6 Angstrom to an atom of another
molecule) are never taken. Not an equilibrated liquid; good enough for an example whose answer is a sum.

    python3 make_water.py > water64.xyz                 # the file beside this script
    python3 make_water.py --side 6 > water216.xyz       # a larger one
"""

from __future__ import annotations

import argparse
import math
import random
import sys

SPACING = 3.107  # Angstrom: (18.0153 g/mol / (0.997 g/cm3 x 6.02214e23 /mol)) ** (1/3)
JITTER = 0.15  # Angstrom, at most, each coordinate of an oxygen
R_OH, ANGLE_HOH = 0.9572, 104.52  # Angstrom, degrees
SIGMA_R, SIGMA_ANGLE = 0.02, 3.0  # Angstrom, degrees: about the thermal amplitude of the bend
CLOSEST = 1.6  # Angstrom: a hydrogen and any atom of another molecule
ORIENTATIONS, ROUNDS = 60, 2
CHARGE = {"O": -0.834, "H": 0.417}  # TIP3P

Point = tuple[float, float, float]
Molecule = list[tuple[str, Point]]


def random_axes(rng: random.Random) -> tuple[Point, Point]:
    """Two perpendicular unit vectors, uniformly distributed (first and second column of a random rotation)."""
    while True:
        q = [rng.gauss(0.0, 1.0) for _ in range(4)]
        norm = math.sqrt(sum(x * x for x in q))
        if norm > 1e-6:
            break
    w, x, y, z = (c / norm for c in q)
    return (
        (1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)),
        (2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)),
    )


def molecule(centre: Point, legs: tuple[float, float], angle: float, axes: tuple[Point, Point]) -> Molecule:
    """O at `centre`, the hydrogens at distances `legs` (Angstrom) with `angle` (degrees) between them, in the plane of `axes`."""
    half = math.radians(angle) / 2
    u, v = axes
    atoms: Molecule = [("O", centre)]
    for leg, side in zip(legs, (half, -half), strict=True):
        a, b = leg * math.cos(side), leg * math.sin(side)
        atoms.append(("H", (centre[0] + a * u[0] + b * v[0], centre[1] + a * u[1] + b * v[1], centre[2] + a * u[2] + b * v[2])))
    return atoms


def interaction(one: Molecule, other: Molecule) -> float:
    """Coulomb sum of q q / r (e2/Angstrom), infinite when the two are too close. Only ranks orientations."""
    total = 0.0
    for name, p in one:
        for name2, p2 in other:
            r = math.dist(p, p2)
            if r < CLOSEST and (name, name2) != ("O", "O"):
                return math.inf
            total += CHARGE[name] * CHARGE[name2] / r
    return total


def build(side: int, seed: int) -> list[Molecule]:
    """`side`**3 molecules, a function of `side` and `seed` alone."""
    rng = random.Random(seed)
    middle = (side - 1) * SPACING / 2
    frames = []
    for ix in range(side):
        for iy in range(side):
            for iz in range(side):
                x, y, z = (i * SPACING - middle + rng.uniform(-JITTER, JITTER) for i in (ix, iy, iz))
                legs = (rng.gauss(R_OH, SIGMA_R), rng.gauss(R_OH, SIGMA_R))
                frames.append(((x, y, z), legs, rng.gauss(ANGLE_HOH, SIGMA_ANGLE)))
    placed: list[Molecule | None] = [None] * len(frames)
    for _ in range(ROUNDS):
        for i, (centre, legs, angle) in enumerate(frames):
            others = [m for j, m in enumerate(placed) if m is not None and j != i]
            best, best_energy = None, math.inf
            for _ in range(ORIENTATIONS):
                candidate = molecule(centre, legs, angle, random_axes(rng))
                energy = sum(interaction(candidate, other) for other in others)
                if best is None or energy < best_energy:
                    best, best_energy = candidate, energy
            if best_energy == math.inf:
                raise SystemExit(f"molecule {i}: no orientation without a close contact; use another --seed")
            placed[i] = best
    return [m for m in placed if m is not None]


def main() -> None:
    """Prints the cluster as an .xyz file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=4, help="molecules along an edge of the cube (default 4: 64 molecules)")
    parser.add_argument("--seed", type=int, default=1983)
    args = parser.parse_args()
    molecules = build(args.side, args.seed)
    print(3 * len(molecules))
    print(
        f"{len(molecules)} water molecules (O H H each), Angstrom; made by make_water.py --side {args.side} --seed {args.seed}: "
        f"jittered cubic lattice at 0.997 g/cm3, "
        f"TIP3P geometry +- {SIGMA_R} A and {SIGMA_ANGLE:g} degrees, best of {ORIENTATIONS} random orientations"
    )
    for m in molecules:
        for name, (x, y, z) in m:
            sys.stdout.write(f"{name} {x:10.5f} {y:10.5f} {z:10.5f}\n")


if __name__ == "__main__":
    main()
