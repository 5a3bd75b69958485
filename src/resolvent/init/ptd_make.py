"""Make the shipped PTD results: `python -m resolvent.init.ptd_make` (minutes; N = 128 takes most of them).

python -m resolvent.init.ptd_make                 all sizes into the package's own file
python -m resolvent.init.ptd_make new.npz 4 8     some sizes into another file
"""

from __future__ import annotations

import sys
from pathlib import Path

from resolvent.init import ptd_store
from resolvent.init.ptd_method import ptd
from resolvent.init.ptd_result import PTD
from resolvent.init.ptd_search import Search

HOW = Search(rounds=60)
HEAD = "|    N | kappa | rel. size |      D |   max Re | backward | rounds | seconds | converged |"


def row(result: PTD) -> str:
    return (
        f"| {result.n:4d} | {result.kappa:5.2f} | {result.relative_size:9.4f} | {result.distance:6.4f} | "
        f"{result.max_real:8.4f} | {result.backward_error:8.1e} | {result.rounds:6d} | {result.seconds:7.1f} | "
        f"{result.converged!s:9} |"
    )


def make(path: Path, sizes: list[int]) -> None:
    """Search every size and write those; one that did not converge stops it all."""
    print(HEAD)
    results = []
    for n in sizes:
        results.append(ptd("legs", n, how=HOW, recompute=True))
        print(row(results[-1]), flush=True)
        if not results[-1].converged:
            raise SystemExit(f"ptd_make: N = {n}: {results[-1].message}")
    ptd_store.write(results, path)


if __name__ == "__main__":
    given = sys.argv[1:]
    make(Path(given[0]) if given else ptd_store.PATH, [int(n) for n in given[1:]] or list(ptd_store.SIZES))
