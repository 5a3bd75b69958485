"""Older records and those of masking.py as evidence that `resolvent verdicts` reads.

python -m benchmarks.gather OUT/MASKING_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.about import RESULTS

PLACE = RESULTS / "evidence"
SCALED = {"dss+ads": "dss+relu", "s4+ads": "s4+relu"}


def main() -> None:
    PLACE.mkdir(exist_ok=True)
    for path in sorted(Path(sys.argv[1]).glob("s*.json")):  # a cell that was only trained has no "alone"
        write(f"mnist-masking-{path.stem}", masking(json.loads(path.read_text(encoding="utf-8"))))
    for name, tags in (("headline_text", ("gelu",)), ("headline", ("none",))):
        write(f"qi2024-s4-cifar10-pgd-at-{tags[0]}-seed5", headline(read(f"{name}.json"), name))
    write("digits-robustness", digits(read("digits.json")))


def read(name: str) -> dict[str, Any]:
    held: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return held


def write(name: str, held: dict[str, Any]) -> None:
    (PLACE / f"{name}.json").write_text(json.dumps(held, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def masking(record: dict[str, Any]) -> dict[str, Any]:
    """Accuracies in per cent. `probe` is PGD-10 as the cell itself was trained and measured, on 10,000 images."""
    cell = record["cell"]
    chosen = [row for row in record["rows"] if "test_clean" in row][-1]
    values: dict[str, float] = {"epochs trained": chosen["epoch"], "clean": 100 * chosen["test_clean"]}
    values["probe"] = 100 * chosen["test_robust"]
    values["probe less clean"] = values["probe"] - values["clean"]
    for name, row in record.get("alone", {}).items():
        values[name if name != "clean" else "clean of the attacked"] = 100 * row["accuracy"]
    if "autoattack" in record:
        values["images"] = record["alone"]["clean"]["n"]
        values["AutoAttack"] = 100 * record["autoattack"]["accuracy"]
    structure = cell["structure"] if cell["ads"] is None else f"{cell['structure']}+{cell['ads']}"
    entry = {"recipe": "mnist-masking", "tags": [structure, cell["activation"], cell["attack"], cell["kind"]]}
    entry |= {"seed": cell["seed"], "commit": record["commit"], "command": command(record["command"])}
    entry |= {"device": record["versions"]["device"], "values": {name: round(v, 4) for name, v in values.items()}}
    kept = ("epochs", "checkpoint", "versions", "threat", "rows", "alone", "larger", "along", "autoattack", "seconds")
    return entry | {"record": {name: record[name] for name in kept if name in record}}


def command(line: str) -> str:
    """Without the places of the machine that ran it."""
    words = line.split()
    at = next(i for i, word in enumerate(words) if word.endswith(("masking.py", ".masking")))
    kept = ["python", "-m", "benchmarks.attacks.masking", "out/masking", *words[at + 2 :]]
    return " ".join(kept[: kept.index("--worker")] if "--worker" in kept else kept)


def headline(record: dict[str, Any], name: str) -> dict[str, Any]:
    names = {"clean": "clean", "PGD-10": "pgd10", "AA": "autoattack"}
    values = {
        f"{names[what]}_{place.replace(' ', '_')}": number
        for place, row in record["results"].items()
        for what in names
        if isinstance(number := row.get(what), int | float)
    }
    text = name == "headline_text"
    tags = ["s4", "cifar10", "pgd-at"] + ([] if text else ["pixels", "none"])
    entry = {"recipe": "qi2024-table1" if text else "qi2024-versions", "tags": tags, "seed": 5}
    return entry | {
        "commit": record["commit"],
        "command": record["command"],
        "device": record["device"],
        "values": values,
    }


def digits(record: dict[str, Any]) -> dict[str, Any]:
    held = []
    for cell in record["cells"]:
        values = {
            f"{ours}_{place}": round(100 * cell[place][theirs], 4)
            for place in ("best", "last")
            for ours, theirs in (("clean", "test_clean"), ("pgd10", "test_robust"), ("autoattack", "autoattack"))
        }
        structure = SCALED.get(cell["structure"], cell["structure"])
        held.append({"tags": [structure, "digits", cell["objective"]], "seed": cell["seed"], "values": values})
    shared = {name: record[name] for name in ("commit", "device")}
    return {"recipe": "digits-robustness", **shared, "command": "resolvent run digits-robustness", "evidence": held}


if __name__ == "__main__":
    main()
