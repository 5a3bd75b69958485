"""At most k tokens replaced by others: gradient-guided swaps, greedy or with a beam (Ebrahimi et al. 2018).

To first order in the embedding a swap of the token x_i for v raises the margin by  g_i . (E[v] - E[x_i]),  where g is
the gradient at the embedded sequence and E the table of embeddings. The best swaps of every sequence in the
beam are evaluated by the model, the best of them form the next beam, k times; a misclassified sample stops.

With beam and tries large enough for all swaps this is an exhaustive search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from resolvent.attacks.objective.objective import margin
from resolvent.attacks.rows import check_logits
from resolvent.attacks.substitution.swaps import Swaps, check_tokens
from resolvent.attacks.victim import Victim, call_padded
from resolvent.usage.numbers import Counted, check_count

_AT_ONCE = 1 << 24  # most swap scores, or tokens of candidate sequences, in memory at a time


class TokenModel(Protocol):
    """The model interface: its output, its embedding, and the rest after the embedding."""

    def __call__(self, tokens: Tensor, *lengths: Tensor) -> Tensor: ...
    def embed(self, tokens: Tensor) -> Tensor: ...
    def from_embedding(self, e: Tensor, *lengths: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Substitution(Counted):
    """`Substitution(k=3)(model, tokens, y)`.

    k           most tokens of a sample that change
    beam        sequences kept at a time; 1 is greedy
    tries       swaps of each that are evaluated by the model, best first
    batch_size  most sequences passed through the model at once

    Examples:
        >>> rv.attacks.Substitution(k=3, beam=4).k
        3
    """

    least: ClassVar[dict[str, int]] = {"k": 1, "beam": 1, "tries": 1, "batch_size": 1}
    k: int = 1
    beam: int = 1
    tries: int = 32
    batch_size: int = 256

    @property
    def name(self) -> str:
        return f"substitution-{self.k}" if self.beam == 1 else f"substitution-{self.k}-beam-{self.beam}"

    def __call__(
        self,
        model: Any,
        tokens: Tensor,
        y: Tensor,
        *,
        vocabulary: int | None = None,
        allowed: Tensor | None = None,
        mask: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> SubstitutionResult:
        """Attack model at tokens (b, l) with labels y (b,).

        vocabulary  number of tokens; default from model.config
        allowed     bool (V,): tokens that may be inserted; or (V, V): which may replace which (row: the old)
        mask        bool (b, l): positions that may change; padding never does
        """
        size = _vocabulary(model, vocabulary)
        check_tokens(self.k, tokens, y, size, allowed, mask, lengths)
        tokens, y = tokens.long(), y.long()
        swaps = Swaps.of(tokens, size, allowed, mask, lengths)
        found, held = [], tokens.shape[1] * self.beam * max(size, self.tries)
        with Victim(model).attacked(), torch.inference_mode(False):
            table = _table(model, size, tokens.device)
            for rows in torch.arange(len(tokens), device=tokens.device).split(max(1, _AT_ONCE // held)):
                own = None if lengths is None else lengths[rows]
                search = _Search(self, model, table, swaps.select(rows), y[rows], own)
                found.append(search.run(tokens[rows], self.name))
        return SubstitutionResult.joined(found)


@dataclass(frozen=True, eq=False)
class SubstitutionResult:
    """One entry per sample.

    Examples:
        >>> input = rv.models.TokensConfig(vocab=6)
        >>> model = rv.build_model(rv.ModelConfig(input=input, d_model=4, layers=1)).eval()
        >>> tokens = torch.randint(6, (2, 8))
        >>> found = rv.attacks.substitute(model, tokens, model(tokens).argmax(1), k=1)
        >>> found.tokens.shape
        torch.Size([2, 8])
    """

    tokens: Tensor  # (b, l) after the attack
    success: Tensor  # (b,) bool: misclassified
    margin: Tensor  # (b,) positive when misclassified
    changed: Tensor  # (b,) number of changed tokens
    queries: Tensor  # (b,) sequences evaluated by the model
    name: str

    @classmethod
    def joined(cls, parts: list[SubstitutionResult]) -> SubstitutionResult:
        names = ("tokens", "success", "margin", "changed", "queries")
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names}, name=parts[0].name)

    @property
    def accuracy(self) -> float:
        return 1.0 - float(self.success.double().mean())

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self.success)} samples, accuracy {self.accuracy:.2%} after at most "
            f"{int(self.changed.max())} substitutions; {int(self.queries.sum()):,} sequences tried"
        )


def substitute(
    model: Any, tokens: Tensor, y: Tensor, k: int = 1, *, beam: int = 1, tries: int = 32, **given: Any
) -> SubstitutionResult:
    """`substitute(model, tokens, y, k=3, beam=4)`: as `Substitution`, with the arguments of its call.

    Examples:
        >>> input = rv.models.TokensConfig(vocab=6)
        >>> model = rv.build_model(rv.ModelConfig(input=input, d_model=4, layers=1)).eval()
        >>> tokens = torch.randint(6, (2, 8))
        >>> found = rv.attacks.substitute(model, tokens, model(tokens).argmax(1), k=2)
        >>> bool(((found.tokens != tokens).sum(1) <= 2).all())
        True
    """
    return Substitution(k, beam, tries)(model, tokens, y, **given)


class _Search:
    """The search on some samples. A beam has sequences (b, w, l) with margins (b, w); -inf marks an empty slot."""

    def __init__(
        self, how: Substitution, model: TokenModel, table: Tensor, swaps: Swaps, y: Tensor, lengths: Tensor | None
    ) -> None:
        self.how, self.model, self.table, self.swaps, self.y, self.lengths = how, model, table, swaps, y, lengths

    def run(self, tokens: Tensor, name: str) -> SubstitutionResult:
        b = len(tokens)
        everyone = torch.arange(b, device=tokens.device)
        logits = self._forward(tokens, everyone)
        check_logits(logits, self.y)
        best, score = tokens.clone(), margin(logits, self.y).double()
        queries = torch.ones(b, dtype=torch.int64, device=tokens.device)
        at, beams, value = everyone, tokens[:, None], score[:, None]
        for _ in range(self.how.k):
            standing = score[at] <= 0
            at, beams, value = at[standing], beams[standing], value[standing]
            if not len(at):
                break
            tried, found = self._expand(at, beams, value, tokens[at])  # (b, m, l), (b, m)
            queries[at] += torch.isfinite(found).sum(1)
            order = found.argsort(dim=1, descending=True, stable=True)[:, : self.how.beam]
            beams = tried.gather(1, order[..., None].expand(-1, -1, tried.shape[2]))
            value = found.gather(1, order)
            better = value[:, 0] > score[at]
            best[at[better]], score[at[better]] = beams[better, 0], value[better, 0]
        return SubstitutionResult(best, score > 0, score, (best != tokens).sum(1), queries, name)

    def _expand(self, at: Tensor, beams: Tensor, value: Tensor, home: Tensor) -> tuple[Tensor, Tensor]:
        """The best swaps of every sequence, and their margins; -inf for duplicates and forbidden ones."""
        b, w, l = beams.shape
        flat, rows = beams.reshape(b * w, l), at.repeat_interleave(w)
        gain = self._promise(flat, rows)  # (b w, l, V)
        may = self.swaps.may(rows, flat, home.repeat_interleave(w, 0), self.how.k)
        gain = torch.where(may & torch.isfinite(value).view(-1, 1, 1), gain, -torch.inf)
        m = min(self.how.tries, gain[0].numel())
        top = gain.flatten(1).topk(m, dim=1)
        place, token = top.indices // gain.shape[2], top.indices % gain.shape[2]  # (b w, m)
        tried = flat[:, None].repeat(1, m, 1).scatter(2, place[..., None], token[..., None]).view(b, w * m, l)
        which = torch.isfinite(top.values).view(b, w * m).nonzero()  # (n, 2)
        which = which if w == 1 else which[_find_first(torch.cat([which[:, :1], tried[which[:, 0], which[:, 1]]], 1))]
        found = torch.full((b, w * m), -torch.inf, dtype=torch.float64, device=flat.device)
        if len(which):
            row, column = which.unbind(1)
            logits = self._forward(tried[row, column], at[row])
            found[row, column] = margin(logits, self.y[at[row]]).double()
        return tried, found

    def _promise(self, flat: Tensor, rows: Tensor) -> Tensor:
        """g_i . (E[v] - E[x_i]) for every position and token: (n, l, V)."""
        pieces = []
        for part in torch.arange(len(flat), device=flat.device).split(self.how.batch_size):
            with torch.enable_grad():
                e = self.model.embed(flat[part]).detach().requires_grad_()
                logits = self._call(self.model.from_embedding, e, rows[part])
                (g,) = torch.autograd.grad(margin(logits, self.y[rows[part]]).sum(), e)
            score = g.float() @ self.table.T  # (n, l, V)
            pieces.append(score - score.gather(2, flat[part][..., None]))
        return torch.cat(pieces).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)

    def _forward(self, tokens: Tensor, rows: Tensor) -> Tensor:
        with torch.no_grad():
            parts = torch.arange(len(tokens), device=tokens.device).split(self.how.batch_size)
            return torch.cat([self._call(self.model, tokens[part], rows[part]) for part in parts])

    def _call(self, f: Callable[..., Any], x: Tensor, rows: Tensor) -> Tensor:
        output: Tensor = f(x) if self.lengths is None else call_padded(f, x, self.lengths[rows])
        output = output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
        single = output.dim() == 2 and output.shape[1] == 1  # one logit counts as (0, z)
        return torch.cat([torch.zeros_like(output), output], 1) if single else output


def _find_first(lines: Tensor) -> Tensor:
    """Which rows (n, k) are the first of their duplicates: bool (n,)."""
    number = torch.arange(len(lines), device=lines.device)
    if not len(lines):
        return number.bool()
    kinds, kind = torch.unique(lines, dim=0, return_inverse=True)
    first = number.new_full((len(kinds),), len(lines)).scatter_reduce(0, kind, number, "amin")
    return first[kind] == number


def _table(model: TokenModel, size: int, device: torch.device) -> Tensor:
    """The embeddings of all tokens: (V, d)."""
    with torch.no_grad():
        return model.embed(torch.arange(size, device=device)[:, None])[:, 0].float()


def _vocabulary(model: Any, given: int | None) -> int:
    for name in ("embed", "from_embedding"):
        if not callable(getattr(model, name, None)):
            raise TypeError(
                f"substitute: expected a model of tokens with embed(tokens) and from_embedding(e), and "
                f"{type(model).__name__} has no {name}; give it both, so that forward(x) is from_embedding(embed(x))."
            )
    known = getattr(getattr(getattr(model, "config", None), "input", None), "vocab", None)
    size: Any = known if given is None else given
    check_count("substitute", 2, vocabulary=size)
    return int(size)
