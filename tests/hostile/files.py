"""Files of a run damaged in every way, then every command that reads them: the same numbers, or a refusal.

python tests/hostile/files.py COUNT [FIRST [SECONDS]]     one line of JSON at the end
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from damage import DAMAGES
from scene import Said, Scene, call, numbers, run_cases, timeless

from resolvent.report.runs import read_runs
from resolvent.report.tables.table import tables

COMMANDS = {"report": 50, "run": 30, "attack": 10, "certify": 7, "predict": 2, "analyse": 1}  # of a hundred cases


class Files:
    """One scene, many cases; the wrong ones are kept as lines."""

    def __init__(self, folder: Path) -> None:
        self.scene = Scene(folder)
        first = self.scene.train()
        assert first.status == 0, first
        self.scene.keep()
        self.names = self.scene.files()
        self.want = timeless(self.scene.place())
        readers = [command for command in COMMANDS if command not in ("run", "report")]
        self.shown = {command: numbers(self._said(command).out) for command in readers}
        self.table = self._table()
        self.wrong: list[str] = []
        self.outcomes: Counter[str] = Counter()

    def case(self, number: int) -> None:
        chance = random.Random(number)
        place, name = self.scene.place(), chance.choice(self.names)
        damage, command = chance.choice(DAMAGES), chance.choices(list(COMMANDS), COMMANDS.values())[0]
        if command == "report":  # which reads these alone
            name = Path(chance.choice(("record.json", "record.json", "cell.json")))
        if command == "run" and chance.random() < 0.5:  # as if killed before the end
            (place / "record.json").unlink()
            if not (place / name).exists():
                name = chance.choice([n for n in self.names if (place / n).exists()])
        damage(place / name, [place / n for n in self.names if (place / n).is_file()], chance)
        message = f"case {number}: {damage.__name__} {name}, {command}"
        try:
            self._judge(message, command)
        finally:
            self.scene.restore()

    def _judge(self, message: str, command: str) -> None:
        if command == "report":
            table = self._table()
            if table and table != self.table:
                self.wrong.append(f"{message}: the table says {table}")
            self.outcomes[f"report {'same' if table else 'left out'}"] += 1
            return
        said = self._said(command)
        self.outcomes[f"{command} {said.status}"] += 1
        if said.bad:
            self.wrong.append(f"{message}: {said.status} {said.err[-300:]}")
        elif said.status == 0 and command == "run" and not self._same():
            self.wrong.append(f"{message}: another record")
        elif command != "run" and said.status != 2 and numbers(said.out) != self.shown[command]:
            self.wrong.append(f"{message}: other numbers: {said.out[-300:]}")

    def _same(self) -> bool:
        """Whether the record is that of the undisturbed run; where cell.json became that of another, the run may have
        begun again under another name, and comes to the same numbers there."""
        if (self.scene.place() / "record.json").is_file():
            return timeless(self.scene.place()) == self.want
        new = {p.parent for p in self.scene.runs.glob("*/*/*/record.json")}
        found = [{name: timeless(p)[name] for name in ("training", "attacks")} for p in new]
        return bool(found) and all(each == {name: self.want[name] for name in each} for each in found)

    def _said(self, command: str) -> Said:
        run = str(self.scene.place())
        if command == "run":
            return self.scene.train()
        if command == "attack":
            return call("attack", run, "--preset", "fast", "--samples", "6", "--eps", "0.05")
        if command == "certify":
            return call("certify", run, "--preset", "none", "--samples", "6")
        if command == "predict":
            return call("predict", run, str(self.scene.data))
        return call("analyse", run, "--out", str(self.scene.folder / "analysis"))

    def _table(self) -> list[str]:
        """The lines of report.csv; none where the report is refused."""
        try:
            runs = read_runs([self.scene.runs])
        except ValueError:  # no run is left
            return []
        made = [t for recipe, cells in runs.recipes().items() for t in tables(recipe, cells)]
        return [line for t in made for line in t.csv().splitlines()[1:]]


def run(count: int, first: int = 0, limit: float = 1e9) -> dict[str, object]:
    return {"what": "files"} | run_cases(Files, count, first, limit)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    print(json.dumps(run(*map(int, sys.argv[1:]))))
