"""Studies: the numbers that they find, their records, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from resolvent.experiments import RunError, Study, run_study
from resolvent.experiments.recipe import cells_of, names
from resolvent.experiments.store.lock import Lock, Taken
from resolvent.experiments.studies import conditioning, perturbation, transfer
from resolvent.experiments.studies.starts import NAMES, start
from resolvent.experiments.sweep import sweep

STUDIES = ("ptd-conditioning", "ptd-transfer", "ptd-kappa", "ptd-sensitivity", "ptd-sizes")


def quiet(line: str) -> None:
    return


def column(found: dict[str, Any], name: str) -> list[Any]:
    k = found["table"]["columns"].index(name)
    return [row[k] for row in found["table"]["rows"]]


def test_conditioning_before_and_after() -> None:
    found = conditioning.before_and_after((2, 4, 8, 16))
    assert column(found, "κ of LegS") == ["3.732e0", "8.611e1", "7.703e4", "8.320e10"]
    assert max(column(found, "κ of PTD")) < 15
    assert max(column(found, "‖E‖ / ‖A‖")) < 0.1
    assert max(column(found, "backward error")) < 1e-12
    assert max(column(found, "largest Re λ")) < 0


def test_condition_over_the_size_of_a_random_perturbation() -> None:
    """Medians of five Gaussian perturbations, numpy's default generator with the seeds 0 to 4."""
    found = conditioning.over_sizes((4, 8, 16), (0.01, 0.1), 5)
    medians = dict(zip(zip(column(found, "N"), column(found, "‖E‖ / ‖A‖"), strict=True),
                       column(found, "κ, random (median)"), strict=True))  # fmt: skip
    want = {(4, 0.01): "48", (8, 0.01): "114", (16, 0.01): "160", (4, 0.1): "11.8", (8, 0.1): "12.7", (16, 0.1): "23.7"}
    for key, value in want.items():
        assert f"{medians[key]:.{len(value.partition('.')[2])}f}" == value


def test_the_difference_over_frequency_has_the_spikes() -> None:
    found = transfer.over_frequency(32, points=60)
    rows = {(row[0], row[1]): row[2:] for row in found["table"]["rows"]}
    assert rows["first state", "s4d-legs"] == pytest.approx((0.63713, 325.426), rel=1e-4)
    assert rows["last state", "s4d-legs"] == pytest.approx((5.0101, 325.426), rel=1e-4)
    assert rows["worst read-out of unit norm", "s4d-legs"] == pytest.approx((20.290, 325.426), rel=1e-4)
    assert rows["worst read-out of unit norm", "ptd"][0] < 0.8


def test_plain_grids_miss_what_the_refined_one_sees() -> None:
    found = transfer.sensitivity(32, (30, 3000), (1.0,))
    plain, refined = (curve["y"] for curve in found["charts"][0]["series"][:2])
    assert plain[0] < 0.5 * refined[0]
    assert plain[1] > 0.5 * refined[1]
    assert refined[0] == pytest.approx(20.290, rel=1e-3)
    assert set(column(found, "start")) == {"s4d-legs"}, "PTD is nowhere further than 1 from LegS"
    assert max(column(found, "largest")) == pytest.approx(20.290, rel=1e-3)
    for low, high, at in zip(column(found, "from"), column(found, "to"), column(found, "at frequency"), strict=True):
        assert low <= at <= high


def test_the_size_sweep_shows_the_trade() -> None:
    found = perturbation.size_sweep(16, (0.01, 0.5), 3)
    rows = found["table"]["rows"]
    small, large = (row for row in rows if row[0] == "t P Pᵀ")
    assert small[2] > 20 * large[2]  # kappa falls
    assert large[3] > 20 * small[3]  # the distance grows
    assert small[4] < 0
    assert large[4] < 0
    assert rows[-1][0] == "shipped"


@pytest.mark.parametrize("name", NAMES)
def test_a_start_is_what_it_says(name: str) -> None:
    made = start(name, 8)
    w = torch.tensor([0.3, 2.0, 19.0], dtype=torch.float64)
    eye = torch.eye(8, dtype=torch.complex128)
    want = torch.stack([torch.linalg.solve(1j * x * eye - made.A, made.B.to(torch.complex128)) for x in w], 1)
    assert torch.allclose(made.response.at(w)[..., 0], want, rtol=1e-9, atol=1e-12)
    assert torch.allclose(made.lam.sum(), torch.trace(made.A).to(made.lam.dtype), rtol=1e-9)
    assert made.state_norm(torch.zeros(1, dtype=torch.float64)) > 0
    C = made.read(1)
    assert torch.allclose(made.gain(C, w), torch.einsum("n,nk->k", C.to(want.dtype), want), rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "n", "message"), [("leg", 4, "did you mean 'legs'"), ("ptd", 1, "at least 2"), ("s4d-lin", 5, "use 6")]
)
def test_a_start_that_is_none(name: str, n: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        start(name, n)


@pytest.mark.parametrize("name", STUDIES)
def test_each_recipe_runs_small_and_survives_json(name: str, tmp_path: Path) -> None:
    assert name in names()
    jobs = cells_of(name, "small")
    records = sweep(jobs, tmp_path, tell=quiet)
    assert len(records) == len(jobs)
    for record in records:
        assert record["study"]["text"]
        assert record["study"]["charts"]
        for drawn in record["study"]["charts"]:
            assert any(y is not None and math.isfinite(y) for curve in drawn["series"] for y in curve["y"])
    assert len(cells_of(name, "full")) >= 1


def test_a_study_is_read_not_repeated_and_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (study,) = cells_of("ptd-conditioning", "small")
    assert isinstance(study, Study)
    first = run_study(study, tmp_path, tell=quiet)
    monkeypatch.setattr(conditioning, "before_and_after", None)
    again = run_study(study, tmp_path, tell=quiet)
    assert json.loads(json.dumps(first)) == again
    monkeypatch.undo()
    with pytest.raises(RunError, match="settings"):
        run_study(replace(study, settings=(("sizes", (2, 4)),)), tmp_path, tell=quiet)
    with Lock(tmp_path / "other"), pytest.raises(Taken):
        run_study(study, tmp_path / "other", tell=quiet)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"function": "os.system"}, "no study 'os.system'"),
        ({"function": "conditioning"}, "expected a function"),
        ({"function": "conditioning._hidden"}, "expected a function"),
        ({"settings": (("size", 3),)}, "did you mean 'sizes'"),
        ({"tags": ("../x",)}, "goes into a path"),
    ],
)
def test_a_study_that_is_none(changes: dict[str, Any], message: str) -> None:
    held: dict[str, Any] = {"recipe": "r", "tags": (), "function": "conditioning.before_and_after"}
    with pytest.raises(ValueError, match=message):
        Study(**held | changes)
