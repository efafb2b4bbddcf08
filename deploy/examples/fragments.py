#!/usr/bin/env python3
"""Energy of a water cluster by fragments: two TaskQueues one after the other, every input and output a key in the data store.

The application shape of Takefusa, Nakada, Ikegami and Tanaka (2012), figures 1 and 2, after the fragment molecular orbital method:

    Process 1   reads water64.xyz and cuts it into fragments, one molecule each
    TaskQueue   one task a fragment: internal energy (bonds and angle)
    Process 2   selects the pairs of fragments inside a cut-off
    TaskQueue   (a new one) one task a pair: Coulomb + Lennard-Jones
    Process 3   sums

Every task is submitted with resubmit=True: kill a Starter in the middle, and its tasks run again elsewhere. At the end the
total is compared with the same sum done serially in this process; they must agree to 1e-12 relative.

    rmgr dev --detach                                    # a cluster on this machine
    python fragments.py --progress
    python fragments.py --progress --delay 0.1           # 0.1 s a task: time to kill something
    python fragments.py --compare                        # and the same tasks with plain arguments: the share of waiting for data
    python fragments.py --serial                         # no cluster: the serial answer alone

Energy (kcal/mol, Angstrom, degrees):
    internal  k_b (r - r0)^2 for both bonds + k_a (theta - theta0)^2, with the constants of CHARMM's flexible TIP3P:
              MacKerell et al., J. Phys. Chem. B 102, 3586 (1998)
    pair      sum over 3 x 3 sites of q q' / r, and A/r^12 - C/r^6 between the oxygens: TIP3P,
              Jorgensen, Chandrasekhar, Madura, Impey and Klein, J. Chem. Phys. 79, 926 (1983), table I
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

BOND_K, BOND_R0 = 450.0, 0.9572  # kcal/mol/A^2, A
ANGLE_K, ANGLE_0 = 55.0, math.radians(104.52)  # kcal/mol/rad^2, rad
CHARGE_O, CHARGE_H = -0.834, 0.417  # e
LJ_A, LJ_C = 582.0e3, 595.0  # kcal A^12/mol, kcal A^6/mol
COULOMB = 332.06371  # e^2 / (4 pi eps0) in kcal A/mol
BOND_LONGEST = 1.3  # A: a hydrogen belongs to the oxygen nearer than this
KJ = 4.184  # kJ a kcal

Point = tuple[float, float, float]
Fragment = tuple[Point, Point, Point]  # O, H, H
Energies = tuple[list[float], list[tuple[int, int]], list[tuple[float, float]]]  # of the fragments, the pairs, of the pairs


# -- what runs on the cluster --------------------------------------------------------------------------------------------


def internal_energy(fragment: Fragment, *, delay: float = 0.0) -> float:
    """Bonds and angle of one molecule (kcal/mol)."""
    time.sleep(delay)
    o, h1, h2 = fragment
    a, b = math.dist(o, h1), math.dist(o, h2)
    cosine = sum((p - c) * (q - c) for c, p, q in zip(o, h1, h2, strict=True)) / (a * b)
    theta = math.acos(max(-1.0, min(1.0, cosine)))
    return BOND_K * ((a - BOND_R0) ** 2 + (b - BOND_R0) ** 2) + ANGLE_K * (theta - ANGLE_0) ** 2


def pair_energy(one: Fragment, other: Fragment, *, delay: float = 0.0) -> tuple[float, float]:
    """Coulomb and Lennard-Jones energy between two molecules (kcal/mol, both)."""
    time.sleep(delay)
    charges = (CHARGE_O, CHARGE_H, CHARGE_H)
    sites, others = list(zip(charges, one, strict=True)), list(zip(charges, other, strict=True))
    coulomb = math.fsum(COULOMB * qa * qb / math.dist(a, b) for qa, a in sites for qb, b in others)
    r6 = math.dist(one[0], other[0]) ** 6
    return coulomb, LJ_A / (r6 * r6) - LJ_C / r6


# -- Process 1, 2, 3 ------------------------------------------------------------------------------------------------------


def read_xyz(path: Path) -> list[tuple[str, Point]]:
    """Atoms of an .xyz file (Angstrom). Exits with a sentence when it is not one."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
        count = int(lines[0])
        rows = [row for line in lines[2 : 2 + count] if (row := line.split())]
        atoms = [(row[0], (float(row[1]), float(row[2]), float(row[3]))) for row in rows]
    except (OSError, ValueError, IndexError) as error:
        sys.exit(f"{path}: not an .xyz file: {error}")
    if len(atoms) != count:
        sys.exit(f"{path}: the first line promises {count} atoms, the file has {len(atoms)}")
    return atoms


def cut(atoms: Sequence[tuple[str, Point]]) -> list[Fragment]:
    """Process 1: one fragment a water molecule, in the order of the oxygens in the file."""
    hydrogens = [p for name, p in atoms if name == "H"]
    fragments = []
    for i, centre in enumerate(p for name, p in atoms if name == "O"):
        legs = [h for h in hydrogens if math.dist(centre, h) < BOND_LONGEST]
        if len(legs) != 2:
            sys.exit(f"oxygen {i}: {len(legs)} hydrogens within {BOND_LONGEST} A; this example knows water only")
        fragments.append((centre, legs[0], legs[1]))
    if not fragments or 3 * len(fragments) != len(atoms):
        sys.exit(f"{len(atoms)} atoms do not make whole water molecules")
    return fragments


def pairs_within(fragments: Sequence[Fragment], cutoff: float) -> list[tuple[int, int]]:
    """Process 2: pairs whose oxygens are at most `cutoff` apart (whole molecules, so no charge is cut)."""
    n = len(fragments)
    return [(i, j) for i in range(n) for j in range(i + 1, n) if math.dist(fragments[i][0], fragments[j][0]) <= cutoff]


def total_energy(internal: Sequence[float], pairs: Sequence[tuple[float, float]]) -> float:
    """Process 3: the sum, correctly rounded, so that it does not depend on the order in which tasks ended."""
    return math.fsum([*internal, *(x for pair in pairs for x in pair)])


# -- the application -----------------------------------------------------------------------------------------------------


def on_the_cluster(fragments: Sequence[Fragment], args: argparse.Namespace) -> Energies:
    """Process 1, TaskQueue, Process 2, TaskQueue."""
    import rmgr

    store = rmgr.connect().store
    key = args.prefix or f"fragments/{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    again = {"resubmit": True, "overwrite": args.overwrite}
    print(f"Data store    {key}/...")

    started = time.monotonic()
    store.put_many({f"{key}/in/{i}": fragment for i, fragment in enumerate(fragments)})
    stored_s = time.monotonic() - started

    started = time.monotonic()
    with rmgr.TaskQueue(functools.partial(internal_energy, delay=args.delay), cores=1) as queue:
        for i in range(len(fragments)):
            queue.submit(inputs=[f"{key}/in/{i}"], outputs=[f"{key}/internal/{i}"], **again)
        queue.wait_all(progress=args.progress)
    first_s = time.monotonic() - started
    print(f"TaskQueue 1   {queue.name}: {len(fragments)} tasks, one a fragment: {first_s:.2f} s")

    started = time.monotonic()
    pairs = pairs_within(fragments, args.cutoff)
    with rmgr.TaskQueue(functools.partial(pair_energy, delay=args.delay), cores=1) as queue:
        for i, j in pairs:
            queue.submit(inputs=[f"{key}/in/{i}", f"{key}/in/{j}"], outputs=[f"{key}/pair/{i}-{j}"], **again)
        queue.wait_all(progress=args.progress)
    second_s = time.monotonic() - started
    print(f"TaskQueue 2   {queue.name}: {len(pairs)} tasks, one a pair within {args.cutoff:g} A: {second_s:.2f} s")

    started = time.monotonic()
    internal = store.get_many(f"{key}/internal/{i}" for i in range(len(fragments)))
    energies = store.get_many(f"{key}/pair/{i}-{j}" for i, j in pairs)
    if len(internal) != len(fragments) or len(energies) != len(pairs):
        sys.exit("outputs are missing from the data store")
    read_s = time.monotonic() - started
    if args.compare:
        compare(fragments, pairs, args, stored_s=stored_s, read_s=read_s, queues_s=first_s + second_s)
    return list(internal.values()), pairs, list(energies.values())


def compare(
    fragments: Sequence[Fragment],
    pairs: Sequence[tuple[int, int]],
    args: argparse.Namespace,
    *,
    stored_s: float,
    read_s: float,
    queues_s: float,
) -> None:
    """Runs the same tasks with plain arguments, and prints which share of the time with keys was waiting for data."""
    import rmgr

    started = time.monotonic()
    with rmgr.TaskQueue(functools.partial(internal_energy, delay=args.delay), cores=1) as queue:
        for future in queue.map(None, fragments):
            future.result()
    with rmgr.TaskQueue(functools.partial(pair_energy, delay=args.delay), cores=1) as queue:
        for future in queue.map(None, [fragments[i] for i, _ in pairs], [fragments[j] for _, j in pairs]):
            future.result()
    plain_s = time.monotonic() - started
    waited_s = stored_s + read_s + max(0.0, queues_s - plain_s)
    share = 100 * waited_s / (stored_s + queues_s + read_s)
    print(
        f"Data          {share:.0f} % of the time was waiting for data: inputs stored in {stored_s:.2f} s, outputs read in {read_s:.2f} s, "
        f"queues {queues_s:.2f} s, with plain arguments {plain_s:.2f} s"
    )


def serially(fragments: Sequence[Fragment], cutoff: float) -> Energies:
    """The same three lists, computed here one after the other."""
    pairs = pairs_within(fragments, cutoff)
    return [internal_energy(f) for f in fragments], pairs, [pair_energy(fragments[i], fragments[j]) for i, j in pairs]


def report(internal: Sequence[float], pairs: Sequence[tuple[float, float]]) -> float:
    """Prints the parts of the energy and returns the total (kcal/mol)."""
    rows = [
        ("internal", math.fsum(internal)),
        ("Coulomb", math.fsum(c for c, _ in pairs)),
        ("Lennard-Jones", math.fsum(lj for _, lj in pairs)),
        ("total", total_energy(internal, pairs)),
    ]
    print(f"\n{'energy':<16}{'kcal/mol':>16}{'kJ/mol':>16}{'kcal/mol/molecule':>20}")
    for name, value in rows:
        print(f"{name:<16}{value:>16.6f}{value * KJ:>16.6f}{value / len(internal):>20.6f}")
    return rows[-1][1]


def main() -> None:
    """Runs the application and checks its answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(__file__).with_name("water64.xyz")
    parser.add_argument("--xyz", type=Path, default=beside, help="water cluster (default: water64.xyz beside this file)")
    parser.add_argument("--cutoff", type=float, default=6.0, help="largest O-O distance of a pair, A (default 6)")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds that each task sleeps in addition, to have time for a fault")
    parser.add_argument("--prefix", default="", help="prefix of all keys in the data store (default: a new one every run)")
    parser.add_argument("--overwrite", action="store_true", help="replace outputs that exist already under --prefix")
    parser.add_argument("--progress", action="store_true", help="show progress while the tasks run")
    parser.add_argument("--compare", action="store_true", help="run the tasks with plain arguments too: the share of waiting for data")
    parser.add_argument("--serial", action="store_true", help="compute here, without a cluster")
    args = parser.parse_args()

    fragments = cut(read_xyz(args.xyz))
    print(f"Cluster       {len(fragments)} water molecules from {args.xyz.name}", flush=True)
    serial_internal, serial_pairs, serial_energies = serially(fragments, args.cutoff)
    if args.serial:
        print(f"Pairs         {len(serial_pairs)} within {args.cutoff:g} A")
        report(serial_internal, serial_energies)
        return
    internal, _, energies = on_the_cluster(fragments, args)
    total = report(internal, energies)
    serial = total_energy(serial_internal, serial_energies)
    difference = abs(total - serial) / abs(serial)
    print(f"\nserial sum      {serial:>16.6f}   relative difference {difference:.1e}")
    if not difference <= 1e-12:
        sys.exit("the cluster's answer is NOT the serial one: a task was lost, or ran twice with another result")
    print("The cluster's answer equals the serial one.")


if __name__ == "__main__":
    main()
