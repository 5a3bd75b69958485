"""`import_weights`: weights trained by other projects, as our model or layer with the same outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn

from resolvent.models.foreign.fill import Weights
from resolvent.models.foreign.griffin import import_recurrentgemma, import_transformers_griffin
from resolvent.models.foreign.l2ru import import_l2ru
from resolvent.models.foreign.lru import import_lru
from resolvent.models.foreign.mamba import import_mamba
from resolvent.models.foreign.mega import import_mega
from resolvent.models.foreign.read import read_settings, read_weights
from resolvent.models.foreign.s4 import import_s4
from resolvent.models.foreign.s5 import import_s5, import_s5_pytorch
from resolvent.usage.numbers import check_choice

Source = Literal[
    "mamba_ssm", "transformers", "mambapy", "recurrentgemma", "s4", "s5", "s5-pytorch", "lru", "mega", "neural-ssm"
]
IMPORTERS: dict[str, Callable[..., Any]] = {
    "mamba_ssm": import_mamba,
    "mambapy": import_mamba,
    "recurrentgemma": import_recurrentgemma,
    "s4": import_s4,
    "s5": import_s5,
    "s5-pytorch": import_s5_pytorch,
    "lru": import_lru,
    "mega": import_mega,
    "neural-ssm": import_l2ru,
}
SOURCES = ("transformers", *IMPORTERS)


def import_weights(source: Source, weights: Mapping[str, Any] | nn.Module | str | Path, **facts: Any) -> Any:
    """A model, block or layer of ours with weights trained by another project, and the same outputs.

    source    their project: "mamba_ssm", "transformers" (Mamba, RecurrentGemma), "mambapy", "recurrentgemma",
              "s4" (state-spaces/s4: S4, S4D), "s5" (flax), "s5-pytorch", "lru" (minimal-LRU, flax), "mega" (fairseq),
              "neural-ssm" (L2RU)
    weights   a state dict, nested dicts of arrays (flax), a module, a file (.safetensors, .npz, or torch's, read with
              weights_only), or a folder of transformers' `save_pretrained`; the config of a module or folder is used
    facts     what the weights do not determine, if not the source's default: `norm_eps`, `prenorm`, `window`, ...;
              docs/weights.md lists them for each source

    Names and shapes must be exactly those of the source: missing, unknown or misshaped tensors are listed and
    nothing is imported. Sizes are read from the shapes; the result is float64 if any tensor is, else float32.

    Examples:
        >>> layer = rv.LRU(2, 4)
        >>> rv.models.import_weights("lru", {"nu_log": torch.zeros(4)})
        Traceback (most recent call last):
            ...
        ValueError: ...
    """
    check_choice("import_weights", "source", source, SOURCES)
    found = Weights(source, read_weights(weights))
    settings = read_settings(weights) if source == "transformers" else {}
    make = _of_transformers(found) if source == "transformers" else IMPORTERS[source]
    _check_facts(source, make, facts)
    return make(found, settings, **facts) if "settings" in inspect.signature(make).parameters else make(found, **facts)


def _of_transformers(weights: Weights) -> Callable[..., Any]:
    griffin = any(".rg_lru." in name for name in weights.tensors)
    return import_transformers_griffin if griffin else import_mamba


def _check_facts(source: str, make: Callable[..., Any], facts: dict[str, Any]) -> None:
    parameters = inspect.signature(make).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return  # checked where they are used
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for name in facts:
        check_choice(f"import_weights({source!r})", "a fact", name, known)


__all__ = ["SOURCES", "Source", "import_weights"]
