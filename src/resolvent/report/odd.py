"""Records that no page can be made of: left out by name, so that they do not take the others with them."""

from __future__ import annotations

from collections.abc import Callable

from resolvent.report.runs import Runs


def without_odd(runs: Runs, show: Callable[[Runs], object], first: Exception) -> Runs:
    """Without the records that cannot be shown even alone; where all can be, the error `first` is not theirs."""
    kept, named = {}, list(runs.problems)
    for folder, record in runs.records.items():
        try:
            show(Runs({folder: record}))
        except Exception as wrong:  # of any kind: a record is whatever somebody put there
            named.append(f"{folder / 'record.json'}: cannot be shown ({type(wrong).__name__} {wrong}); left out")
        else:
            kept[folder] = record
    if len(kept) == len(runs.records):
        raise first
    return Runs(kept, named)
