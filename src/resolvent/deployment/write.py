"""`export(model, folder)`: forms traced, written, read back and compared with the model before reporting success."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from resolvent.data.preparation.preprocess import Preprocess
from resolvent.deployment.forms import Pairs, Step, Whole
from resolvent.deployment.onnx_file import check_opset, load_onnx, onnx_bytes
from resolvent.deployment.prepared import Prepared
from resolvent.disk import write_json
from resolvent.disk.document import replace
from resolvent.lowering.describe import describe
from resolvent.lowering.program import Network
from resolvent.models import Model, TwoTower
from resolvent.models.config import TokensConfig
from resolvent.predictor import Predictor
from resolvent.usage.error import UsageError

Target = Literal["pt2", "onnx"]
Form = Whole | Pairs | Step
TARGETS: tuple[Target, ...] = ("pt2", "onnx")
CARD = "export.json"
LENGTHS = ((1, 3), (3, 17), (2, 40))  # (batch, length) of the comparison after writing
ALLOWED = 1e-5  # relative to the outputs' scale


@dataclass(frozen=True)
class Exported:
    """The exported files: the sequence form, the step form if there is one, and a card that documents how to call them.

    largest_error   of the files' outputs against the model's, relative to the largest output
    no_step         why there is no step form

    Examples:
        >>> made = rv.export(rv.build_model(rv.ModelConfig(d_model=4, layers=1)), "deployed")  # doctest: +SKIP
        >>> made.sequence.name, made.step.name, made.card.name  # doctest: +SKIP
        ('model.pt2', 'step.pt2', 'export.json')
    """

    sequence: Path
    step: Path | None
    card: Path
    largest_error: float
    no_step: str | None = None


def export(
    model: Model | TwoTower | Predictor,
    folder: str | Path,
    to: Target = "pt2",
    *,
    opset: int | None = None,
    step: bool = True,
) -> Exported:
    """Write the model, with a predictor's preprocessing, for other programs, for any batch size and length.

    folder   for model.pt2 or model.onnx (x, lengths -> outputs), step.pt2 or step.onnx (x, state -> outputs, state)
             and export.json: names, shapes, the order of the state, classes and channels
    to       "pt2" (torch.export), or "onnx", which needs the extra `export`
    opset    of ONNX, 18 to 23; default: torch's choice
    step     False omits the step form

    The files are read back and compared with the model at several batch sizes and lengths; one that differs by
    more than 1e-5 is deleted. pt2 keeps the model's dtype, ONNX is float32.

    Examples:
        >>> model = rv.build_model(rv.ModelConfig(d_model=4, layers=1))
        >>> made = rv.export(model, "deployed", "pt2")  # doctest: +SKIP
        >>> made.largest_error < 1e-5  # doctest: +SKIP
        True
    """
    if to not in TARGETS:
        raise UsageError(f"export: expected --to {' or '.join(TARGETS)}, got {to!r}.")
    if to == "onnx":
        check_opset(opset)
    elif opset is not None:
        raise UsageError("export: an opset is ONNX's; leave it out for pt2.")
    made = _Made(model, torch.float32 if to == "onnx" else None)
    place = Path(folder).expanduser()
    forms: list[tuple[Path, Form]] = [(place / f"model.{to}", made.whole)]
    why = None
    if step:
        try:
            forms.append((place / f"step.{to}", made.step_form()))
        except UsageError as refused:
            why = str(refused)
    written = [(path, *_write(made, form, to, opset)) for path, form in forms]
    for path, data, _ in written:
        replace(path, partial(Path.write_bytes, data=data))
    largest = max(error for *_, error in written)
    write_json(place / CARD, made.card(to, opset, len(forms) > 1, largest), indent=2)
    return Exported(forms[0][0], forms[1][0] if len(forms) > 1 else None, place / CARD, largest, why)


class _Made:
    """The forms of one model, and their reference."""

    def __init__(self, model: Model | TwoTower | Predictor, dtype: torch.dtype | None) -> None:
        self.predictor = model if isinstance(model, Predictor) else None
        own = model.model if isinstance(model, Predictor) else model
        if not isinstance(own, Model | TwoTower):
            raise TypeError(f"export: expected a Model or a Predictor, got {type(own).__name__}; see build_model.")
        self.model = copy.deepcopy(own).cpu().eval()
        self.model = self.model if dtype is None else self.model.to(dtype)
        self.dtype = next(p.dtype for p in self.model.parameters() if p.is_floating_point())
        if self.dtype not in (torch.float32, torch.float64):
            name = str(self.dtype).removeprefix("torch.")
            raise UsageError(f"export: expected a model in float32 or float64, got {name}; export model.float().")
        self.how = self._how()
        if self.pairs and self.how is not None and (self.how.scale != "none" or self.how.missing != "refuse"):
            raise UsageError("export: preprocessing of two documents has no exported form yet; export ready.model.")
        self.how = None if self.pairs else self.how
        chain = describe(self.model).chain
        if len(chain) != 1 or not isinstance(chain[0], Network):
            why = getattr(chain[0], "why", type(own).__name__)
            raise UsageError(f"export: the model is not one that we built: {why}.")
        self.network: Network = chain[0]
        with torch.no_grad():
            self.whole = (Pairs(self.network) if self.pairs else Whole(self.network, self._prepared())).eval()

    @property
    def pairs(self) -> bool:
        return isinstance(self.model, TwoTower)

    def _how(self) -> Preprocess | None:
        how = None if self.predictor is None else self.predictor.preprocess
        return None if how is None or how.inputs is None else how

    def _prepared(self) -> Prepared | None:
        return None if self.how is None else Prepared(self.how, self.dtype)

    def step_form(self) -> Step:
        with torch.no_grad():
            width = getattr(self.model.head, "d_model", self.model.config.d_model)  # of what is pooled
            return Step(self.network, self._prepared(), width).eval()

    # -- inputs ----------------------------------------------------------------------------------------------------

    def values(self, batch: int, length: int, seed: int = 0) -> Tensor:
        """Plausible raw values, with gaps if the model was trained with gaps."""
        g = torch.Generator().manual_seed(seed)
        entry = self.model.config.input
        rows = (batch, 2) if self.pairs else (batch,)
        if isinstance(entry, TokensConfig):
            return torch.randint(0, entry.vocab, (*rows, length), generator=g)
        channels = entry.channels if self.how is None else self.how.inputs or 0
        x = torch.randn(*rows, length, channels, generator=g, dtype=torch.float64)
        if self.how is None:
            return x.to(self.dtype)
        x = x * torch.tensor(self.how.width) + torch.tensor(self.how.centre)
        if self.how.missing != "refuse":
            x[torch.rand(x.shape, generator=g) < 0.2] = torch.nan
        return x.float()

    def lengths(self, batch: int, length: int) -> Tensor:
        count = batch * (2 if self.pairs else 1)
        steps = torch.tensor([max(1, length - 2 * i) for i in range(count)])
        return steps.view(batch, 2) if self.pairs else steps

    def example(self, form: Form) -> tuple[Any, ...]:
        x = self.values(2, 5)
        return (x[:, 0], *self.start(form, 2)) if isinstance(form, Step) else (x, self.lengths(2, 5))

    def start(self, form: Step, batch: int) -> list[Tensor]:
        return [torch.zeros(batch, *shape, dtype=self.dtype) for shape in form.shapes]

    def truth(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """The model's own outputs."""
        ready = x if self.how is None else self.how(x, lengths).to(self.dtype)
        with torch.no_grad():
            return self.model(ready, lengths)

    def card(self, to: str, opset: int | None, stepped: bool, error: float) -> dict[str, Any]:
        tokens = isinstance(self.model.config.input, TokensConfig)
        raw = "int64" if tokens else "float32" if self.how is not None else str(self.dtype).removeprefix("torch.")
        shapes, rows = self.step_form().shapes if stepped else [], ["batch", *([2] if self.pairs else [])]
        how = None if self.predictor is None else self.predictor.preprocess
        return {
            "format": 1,
            "to": to,
            "opset": opset,
            "sequence": {"x": {"shape": [*rows, "length", *(() if tokens else ("channels",))], "dtype": raw},
                         "lengths": {"shape": rows, "dtype": "int64"}},
            "step": {"x": {"shape": ["batch", *(() if tokens else ("channels",))], "dtype": raw},
                     "state": [{"name": f"state_{i}", "shape": ["batch", *shape], "start": 0} for i, shape in
                               enumerate(shapes)]} if stepped else None,
            "channels": list(how.channels) if how is not None else None,
            "classes": list(how.class_names) or how.classes if how is not None else None,
            "missing": how.missing if how is not None else None,
            "compared": {"batch_and_length": [list(pair) for pair in LENGTHS], "largest_error": error},
            "torch": torch.__version__,
        }  # fmt: skip


def _write(made: _Made, form: Form, to: Target, opset: int | None) -> tuple[bytes, float]:
    """The bytes of a file, and by how much what it computes differs from the model."""
    example = made.example(form)
    with torch.no_grad():
        program = torch.export.export(form, example, dynamic_shapes=_dynamic(form, example), strict=False)
    if to == "onnx":
        states = [f"state_{i}" for i in range(len(form.shapes))] if isinstance(form, Step) else []
        names = ["x", *states] if isinstance(form, Step) else ["x", "lengths"]
        outputs = ["outputs", *(f"next_{name}" for name in states)]
        data = onnx_bytes(program, names, outputs, opset)
        call = load_onnx(data, names)
    else:
        held = io.BytesIO()
        torch.export.save(program, held)
        data = held.getvalue()
        call = torch.export.load(io.BytesIO(data)).module()
    error = _step_error(made, form, call) if isinstance(form, Step) else _whole_error(made, call)
    if not error <= ALLOWED:
        raise RuntimeError(f"export: the {to} file differs from the model by {error:.1e} of its outputs; not written.")
    return data, error


def _dynamic(form: Form, example: tuple[Any, ...]) -> Any:
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=1)
    if isinstance(form, Pairs):
        return ({0: batch, 2: length}, {0: batch})
    if isinstance(form, Whole):
        return ({0: batch, 1: length}, {0: batch})
    return ({0: batch}, tuple({0: batch} for _ in example[1:]))


@torch.no_grad()
def _whole_error(made: _Made, call: Any) -> float:
    found = []
    for seed, (batch, length) in enumerate(LENGTHS):
        x, lengths = made.values(batch, length, seed), made.lengths(batch, length)
        found.append(_error(call(x, lengths), made.truth(x, lengths)))
    return max(found)


@torch.no_grad()
def _step_error(made: _Made, form: Step, call: Any) -> float:
    batch, length = LENGTHS[1]
    x, state, found = made.values(batch, length), made.start(form, batch), []
    for t in range(length):
        y, *state = call(x[:, t], *state)
        want = made.truth(x[:, : t + 1], torch.full((batch,), t + 1))
        found.append(_error(y, want[:, -1] if want.dim() == 3 else want))
    return max(found)


def _error(got: Tensor, want: Tensor) -> float:
    if torch.isnan(got).ne(torch.isnan(want)).any():
        return float("inf")
    got, want = got.nan_to_num().double(), want.nan_to_num().double()
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-6))
