"""A trained model ready for raw data, from a run, a checkpoint or a folder of `save_model`.

    ready = rv.load("runs/train/mine-s4d-standard/seed-0")
    ready.predict("new.csv")                    # names of classes
    ready.predict_proba([first, second])        # sequences of any lengths, raw, NaN where missing
    answer, state = ready.step(values)          # one step of a stream

Scale, gap filling, channels and classes are those of training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.data.preparation.like import Raw, arrays_like, read_like
from resolvent.data.preparation.preprocess import Missing, Preprocess
from resolvent.data.readers.file import SUFFIXES
from resolvent.data.readers.values import tensor_of
from resolvent.models import Model, TwoTower, load_model, save_model
from resolvent.models.config import ClassifierConfig, LevelsConfig, ModelConfig, RetrievalConfig, TokensConfig
from resolvent.predictor.saved import Kept, preprocess_in, weights_in
from resolvent.training.measure import pair_logits, score

ROWS = 256  # samples passed through the model at once, at most
QUICK, AMPLE = 2**22, 2**28  # numbers in their activations, on a CPU (within its cache) and on other devices


class Predictor:
    """A model in evaluation mode and its training preprocessing.

    Data are a file (.csv, .tsv, .parquet, .ts, .npz, .safetensors), an array or tensor (n, l, c), one (n, l) for a
    single channel or tokens, or a list of sequences of any lengths; for a model of text, a list of texts.

    Examples:
        >>> model = rv.build_model(rv.ModelConfig(d_model=4, layers=1))
        >>> ready = rv.Predictor(model)
        >>> ready.predict_proba(torch.rand(3, 20, 1)).shape
        (3, 10)
    """

    def __init__(self, model: Model | TwoTower, preprocess: Preprocess | None = None) -> None:
        self.model = model.eval()
        self.preprocess = _of_config(model.config) if preprocess is None else preprocess
        _check_fit(model.config, self.preprocess)

    def __repr__(self) -> str:
        how, answer = self.preprocess, "real targets"
        if how.classes is not None:
            answer = f"{how.classes} classes" + (f" ({', '.join(how.class_names[:12])})" if how.class_names else "")
        what = f"{how.vocabulary} tokens" if how.inputs is None else f"channels {', '.join(self.channels[:12])}"
        return f"Predictor({type(self.model).__name__}: {what} -> {answer}; scale {how.scale}, missing {how.missing})"

    @property
    def classes(self) -> tuple[str, ...] | tuple[int, ...] | None:
        """The values that `predict` returns, in the order of `predict_proba`'s columns; None for real targets."""
        how = self.preprocess
        return None if how.classes is None else how.class_names or tuple(range(how.classes))

    @property
    def channels(self) -> tuple[str, ...]:
        return self.preprocess.channels

    def predict(self, data: Any, lengths: Any = None) -> np.ndarray:
        """(n,) class names, or class numbers if there are no names; or real targets."""
        return self.answers(self.outputs(self.read(data, lengths=lengths)))

    def predict_proba(self, data: Any, lengths: Any = None) -> np.ndarray:
        """(n, classes), in the order of `classes`."""
        return self.probabilities(self.outputs(self.read(data, lengths=lengths)))

    def score(self, data: Any, y: Any = None, lengths: Any = None) -> float:
        """The accuracy; for real targets minus the squared error, as measured in training: summed over the values of a
        sample, a mean over the samples. A file may contain its own targets.
        """
        raw = self.read(data, y, lengths)
        if raw.y is None:
            raise ValueError("score: expected labels, got none; pass y, or a file with a column of labels.")
        if not len(raw):
            raise ValueError("score: expected at least one sample, got none.")
        return self.measure(self.outputs(raw), raw.y)

    def step(self, values: Any, state: Any = None) -> tuple[np.ndarray, Any]:
        """One step of a stream, raw: (c,) or (b, c), or tokens (b,) -> the output so far, and the next state.

        Equals the output for the whole sequence so far: probabilities (b, classes), or real targets (b, outputs).
        """
        if not isinstance(self.model, Model):
            raise ValueError("step: a model of two documents has no stream; predict whole ones.")
        held = {"last": None, "model": None} if state is None else state
        if not isinstance(held, dict) or held.keys() != {"last", "model"}:
            raise ValueError("step: expected the state that step returned last, or None to start a new stream.")
        x, last = self._ready_step(values, held["last"])
        with torch.no_grad():
            output, carried = self.model.step(x, held["model"])
        output = output.double().cpu()
        found = output.numpy() if self.preprocess.classes is None else self.probabilities(output)
        return found, {"last": last, "model": carried}

    def save(self, folder: str | Path) -> Path:
        """Write a folder for `load`."""
        return save_model(self.model, folder, self.preprocess)

    # -- in pieces -------------------------------------------------------------------------------------------------

    def read(self, data: Any, y: Any = None, lengths: Any = None, *, missing: Missing | None = None) -> Raw:
        """The samples as model inputs."""
        how = self.preprocess.by(missing)
        if isinstance(data, Path) or (isinstance(data, str) and Path(data).suffix.lower() in SUFFIXES):
            if y is not None or lengths is not None:
                raise ValueError("predict: a file holds its own labels and lengths; leave y and lengths out.")
            raw = read_like(data, how)
        else:
            raw = arrays_like(data, how, y, lengths)
        return Raw(how(raw.x, raw.lengths), raw.y, raw.lengths, raw.ids, raw.notes)

    def outputs(self, ready: Raw) -> Tensor:
        """The model's outputs: logits (n, classes), or real targets, in float64."""
        first = next(p for p in self.model.parameters() if p.is_floating_point())
        found = []
        with torch.no_grad(), self.model.frozen():
            for rows in torch.arange(len(ready)).split(rows_of(self.model, ready.x)) if len(ready) else ():
                x = ready.x[rows].to(first.device)
                x = x.to(first.dtype) if x.is_floating_point() else x
                lengths = None if ready.lengths is None else ready.lengths[rows].to(first.device)
                found.append(self.model(x, lengths).double().cpu())
        return torch.cat(found) if found else torch.zeros(0, self.preprocess.classes or 1, dtype=torch.float64)

    def answers(self, outputs: Tensor) -> np.ndarray:
        """Class names or numbers from logits; real targets unchanged."""
        if self.classes is None:
            values: np.ndarray = outputs.numpy()
            return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        return np.array(self.classes)[pair_logits(outputs).argmax(-1).numpy()]

    def probabilities(self, outputs: Tensor) -> np.ndarray:
        if self.classes is None:
            raise ValueError("predict_proba: the model predicts real targets, which have no probabilities.")
        return pair_logits(outputs).softmax(-1).numpy()

    def measure(self, outputs: Tensor, y: Tensor) -> float:
        """Accuracy, or minus the squared error of a sample."""
        if y.is_floating_point() and y.numel() != outputs.numel():
            raise ValueError(f"score: expected targets of shape {tuple(outputs.shape)}, got {tuple(y.shape)}.")
        return float(score(outputs, y.double() if y.is_floating_point() else y).double().mean())

    def _ready_step(self, values: Any, last: Tensor | None) -> tuple[Tensor, Tensor | None]:
        first = next(p for p in self.model.parameters() if p.is_floating_point())
        x = tensor_of("a step", values, "step", gaps=True)
        if self.preprocess.inputs is None:
            return self.preprocess(x[None] if x.dim() == 0 else x).to(first.device), None
        x = x if x.dtype == torch.float64 else x.float()
        x = x[None] if x.dim() == 1 else x
        ready, seen = self.preprocess.step(x, last)
        return ready.to(first.device, first.dtype), seen


def load(
    folder: str | Path, *, checkpoint: Kept = "best", device: str | torch.device = "cpu", missing: Missing | None = None
) -> Predictor:
    """The predictor in the folder of a run, of a checkpoint or of `save_model`; `missing`: another rule for gaps.

    Examples:
        >>> ready = rv.load(rv.models.folder_of("digits-l2ru-certified"))
        >>> len(ready.predict(torch.rand(2, 64, 1)))
        2
    """
    place = Path(folder).expanduser()
    if place.is_file():
        raise FileNotFoundError(f"load: {str(folder)!r} is a file; give its folder, {str(place.parent)!r}.")
    if not place.is_dir():
        raise FileNotFoundError(f"load: there is no folder {str(folder)!r}; give that of a run or of a saved model.")
    model = load_model(weights_in(place, checkpoint)).to(device)
    learned = preprocess_in(place, checkpoint)
    made = Predictor(model, learned)
    return made if missing is None else Predictor(model, made.preprocess.by(missing))


def rows_of(model: Model | TwoTower, x: Tensor) -> int:
    """How many rows of x to pass through the model at once: long sequences in wide models take much memory each."""
    work = QUICK if next(model.parameters()).device.type == "cpu" else AMPLE
    return max(1, min(ROWS, work // max(1, x.shape[1] * model.config.d_model)))


def _of_config(config: ModelConfig) -> Preprocess:
    """For a model saved without preprocessing: raw model inputs, numbered classes."""
    classes = getattr(config.head, "classes", None)
    classes = 2 if classes == 1 else classes
    pair = isinstance(config.head, RetrievalConfig)
    if isinstance(config.input, TokensConfig):
        return Preprocess(vocabulary=config.input.vocab, classes=classes, pair=pair)
    c = config.input.channels
    none = (0.0,) * c
    return Preprocess(
        inputs=c, classes=classes, pair=pair, centre=none, width=(1.0,) * c, fill=none, low=none, high=none
    )


def _check_fit(config: ModelConfig, how: Preprocess) -> None:
    """Refuse the preprocessing of another model."""
    if isinstance(config.input, TokensConfig):
        reads, made = f"{config.input.vocab} tokens", f"{how.vocabulary} tokens"
    else:
        count = None if how.inputs is None else how.inputs + len(how.flagged)
        reads, made = f"{config.input.channels} channels", f"{count} channels"
    if reads != made:
        raise ValueError(f"load: the model reads {reads} and its preprocess.json makes {made}; it is of another model.")
    if isinstance(config.head, ClassifierConfig | LevelsConfig | RetrievalConfig):
        known = 2 if config.head.classes == 1 else config.head.classes
        if how.classes != known:
            raise ValueError(
                f"load: the model tells {known} classes apart and its preprocess.json has {how.classes}; it is of "
                "another model."
            )
