"""A run's folder, claimed and checked by the first process for all started by torchrun."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from resolvent.experiments.cell import Addressed, Cell
from resolvent.experiments.store.folder import Folder, RunError
from resolvent.experiments.store.lock import Lock, Taken
from resolvent.experiments.store.source import require_source
from resolvent.training.process_group import ProcessGroup


@contextmanager
def enter_folder(folder: Folder, what: Addressed, group: ProcessGroup) -> Iterator[None]:
    """Hold the folder for this cell or study. What keeps the first process out keeps all of them out alike: one that
    went on alone would wait for the others for ever."""
    with ExitStack() as held:
        wrong: Exception | None = None
        if group.first:
            try:
                held.enter_context(Lock(folder.path))
                folder.admit(what)
                if isinstance(what, Cell):
                    require_source(what, folder.path)
            except (Taken, RunError, OSError) as error:
                wrong = error
        wrong = group.gather(wrong)[0]
        if wrong is not None:
            raise wrong
        yield
