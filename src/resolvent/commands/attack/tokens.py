"""`resolvent attack` of a model of tokens: substitutions, or its embeddings as real numbers."""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from resolvent.attacks import Substitution
from resolvent.attacks.autoattack.evaluate import RECORD
from resolvent.commands.attack.options import Attack
from resolvent.data.task import Split
from resolvent.disk import write_json
from resolvent.training.measure import measure
from resolvent.usage.error import UsageError


def attack_tokens(request: Attack, model: nn.Module, data: tuple[Tensor, ...], console: Console) -> int:
    """Attack by substituting tokens; 0 when done."""
    if request.embedding:
        raise UsageError("--substitutions exchanges tokens, --embedding moves their embeddings; give one of them.")
    _require_alone(request)
    _require_tokens("--substitutions", model, data)
    assert request.substitutions is not None
    how = Substitution(request.substitutions, request.beam, batch_size=request.batch_size)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x, y, *rest = (part[: request.on.samples].to(device) for part in data)
    some = Split(x, y, rest[0] if rest else None)
    found = how(model, some.x, some.y, lengths=some.lengths)
    clean = measure(model.eval(), some, batch_size=request.batch_size)["clean"]
    console.print(f"clean accuracy {clean:.2%}\n{found}", highlight=False, soft_wrap=True)
    if request.out is not None:
        held: dict[str, Any] = {"clean_accuracy": clean, "accuracy": found.accuracy, "attack": found.name}
        lists = {name: getattr(found, name).tolist() for name in ("success", "margin", "changed", "queries", "tokens")}
        write_json(request.out / RECORD, held | lists)
        console.print(f"record: {request.out / RECORD}", highlight=False, soft_wrap=True)
    return 0


def in_embedding(model: nn.Module, data: tuple[Tensor, ...], request: Attack) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model after its embedding, and the embedded tokens of the requested samples."""
    _require_tokens("--embedding", model, data)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x, *rest = (part[: request.on.samples] for part in data)
    with torch.no_grad():
        embedded = [model.embed(part.to(device)).cpu() for part in x.split(request.batch_size)]  # type: ignore[operator]
    return Behind(model), (torch.cat(embedded), *rest)


def _require_alone(request: Attack) -> None:
    """Refuse options of other threats instead of ignoring them."""
    names = ("eps", "eps_raw", "bounds", "bounds_raw", "tolerance", "time_steps", "band", "limit")
    given = [name for name in names if getattr(request, name) is not None]
    given += ["preset"] if request.preset != "standard" else []
    if given:
        option = given[0].replace("_", "-")
        raise UsageError(f"--substitutions counts tokens and takes no --{option}; leave one of them out.")


class Behind(nn.Module):
    """The model after its embedding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, e: Tensor, *lengths: Tensor) -> Tensor:
        found: Tensor = self.model.from_embedding(e, *lengths)  # type: ignore[operator]
        return found


def _require_tokens(option: str, model: nn.Module, data: tuple[Tensor, ...]) -> None:
    if data[0].is_floating_point() or not callable(getattr(model, "from_embedding", None)):
        raise UsageError(f"{option} is for a model of tokens; this one reads {data[0].dtype}: use --norm and --eps.")
