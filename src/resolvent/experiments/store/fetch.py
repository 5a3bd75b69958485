"""Fetch settings and records of runs at a URL for a report, within a limit of bytes."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from resolvent.experiments.store.folder import CELL, RECORD, RunError
from resolvent.experiments.store.objects import Objects, TooLarge

MIB = 2**20
MOST = 1024 * MIB  # thousands of records; one with plots has a few hundred KiB


def fetch_runs(url: str, folder: Path, most: int = MOST) -> Path:
    """The settings and records of all runs below a URL, in the same layout.

    most  total bytes; a larger store is refused, before anything is fetched if it reports sizes
    """
    objects = Objects(url)
    wanted = _list_wanted(objects)
    folder.mkdir(parents=True, exist_ok=True)
    if sum(wanted.values()) > most:
        raise _make_refusal(objects.url, max(wanted, key=lambda name: wanted[name]), wanted, most)
    left = most
    for name in sorted(wanted):
        try:
            left -= objects.copy(name, folder / name, left)
        except FileNotFoundError:  # its worker removed it meanwhile
            continue
        except TooLarge:
            raise _make_refusal(objects.url, name, wanted, most) from None
    return folder


def _list_wanted(objects: Objects) -> dict[str, int]:
    """The objects to fetch, with their sizes."""
    sizes = objects.sizes()
    cells = [name for name in sizes if PurePosixPath(name).name == CELL]
    for name in cells:
        if not _inside(name):
            raise RunError(f"report: {objects.url} holds {name!r}, which leads out of a folder; remove that object.")
    beside = [f"{cell.removesuffix(CELL)}{RECORD}" for cell in cells]
    return {name: sizes[name] for name in (*cells, *beside) if name in sizes}


def _inside(name: str) -> bool:
    """Whether an object's name stays below the target folder: names are arbitrary text."""
    parts = name.replace("\\", "/").split("/")
    return not {"", ".", ".."} & set(parts) and ":" not in parts[0]


def _make_refusal(url: str, name: str, sizes: dict[str, int], most: int) -> RunError:
    message = f" ({sizes[name] / MIB:,.1f} MiB)" if sizes[name] else ""
    return RunError(
        f"report: {url} holds more than {most / MIB:,.0f} MiB of settings and records, the most that is fetched; "
        f"{name!r}{message} is where it ends. Name a folder below it, remove what is no record of yours, or raise the "
        "limit with --fetch-limit (MiB)."
    )
