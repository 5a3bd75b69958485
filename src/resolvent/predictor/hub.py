"""Trained models to and from the Hugging Face hub: only safetensors and JSON, with a card.

    rv.push_to_hub("runs/train/mine-s4d-trades/seed-0", "me/gait")      # a run, a predictor or a model
    ready = rv.from_hub("me/gait")                                      # as from rv.load

Needs the extra `hub`. A repository has the files of `save_model`, card.json and README.md; nothing else is fetched, so
there can be no pickles. Weights have a digest, which is checked on reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resolvent.disk import Damaged, read_json, write_json, write_text
from resolvent.models import Model, TwoTower, count_parameters
from resolvent.models.checkpoint import PREPROCESS, SETTINGS, WEIGHTS
from resolvent.models.shipped import CARD, Card
from resolvent.predictor.card import card_of
from resolvent.predictor.predictor import Predictor, load
from resolvent.usage.error import UsageError

README = "README.md"
FILES = (WEIGHTS, SETTINGS, PREPROCESS, CARD, README)
TAGS = ("state-space-model", "robustness")
CLIENT = ("huggingface_hub", "httpx", "httpx2", "requests", "hf_xet")  # packages with connection or hub errors


def push_to_hub(
    what: str | Path | Predictor | Model | TwoTower,
    repo_id: str,
    *,
    card: Card | None = None,
    private: bool | None = None,
    token: str | None = None,
    branch: str | None = None,
    message: str = "Push a model of resolvent",
) -> str:
    """Send weights, settings, preprocessing and card as one commit; returns its address.

    what     a run's folder (its card is made from its record), a folder of `save_model`, a predictor or a model
    repo_id  "user/name"; created if necessary
    card     replaces the card made from the record

    Examples:
        >>> rv.predictor.push_to_hub("runs/train/weather/seed-0", "me/weather")  # doctest: +SKIP
    """
    if isinstance(what, str | Path):
        ready, card = load(what), card or _card_beside(Path(what).expanduser(), repo_id)
    else:
        ready = what if isinstance(what, Predictor) else Predictor(what)
    with _in_words("push_to_hub", repo_id):
        made = _mixin()(ready, card, repo_id)
        return str(made.push_to_hub(repo_id, private=private, token=token, branch=branch, commit_message=message))


def from_hub(
    repo_id: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache: str | Path | None = None,
    offline: bool = False,
) -> Predictor:
    """The predictor in a repository written by `push_to_hub`; fetched once, then cached.

    revision  a branch, a tag or a commit
    offline   use only the cache

    Examples:
        >>> ready = rv.predictor.from_hub("me/weather")  # doctest: +SKIP
        >>> ready.predict("new.csv")  # doctest: +SKIP
    """
    kind = _mixin()
    with _in_words("from_hub", repo_id):
        found = kind.from_pretrained(repo_id, revision=revision, token=token, cache_dir=cache, local_files_only=offline)
    ready: Predictor = found.ready
    return ready


def write_for_hub(ready: Predictor, folder: str | Path, card: Card | None, name: str) -> Path:
    """Write the folder in the hub's layout."""
    place = ready.save(folder)
    if card is not None:
        write_json(place / CARD, vars(card), indent=2)
    write_text(place / README, page(ready, card, name))
    return place


def page(ready: Predictor, card: Card | None, name: str) -> str:
    """README.md: the hub's metadata on licence and library, the measurements, and how to call the model."""
    licence = [f"license: {card.licence.lower()}"] if card is not None and card.licence else []
    head = ["---", "library_name: resolvent", *licence, "tags:", *(f"- {tag}" for tag in TAGS), "---", ""]
    use = ["## Use", "", "```python", "import resolvent as rv", f'ready = rv.from_hub("{name}")',
           "ready.predict(x)            # raw sequences (n, l, c), or a file", "```", ""]  # fmt: skip
    return "\n".join([*head, _about(ready, card, name), *use])


def _about(ready: Predictor, card: Card | None, name: str) -> str:
    if card is not None:
        return card.markdown()
    known = f"{count_parameters(ready.model):,} parameters; {ready!r}"
    return f"# {name}\n\n{known}\n\nNo card came with it: nothing that was measured is known.\n"


def _card_beside(place: Path, repo_id: str) -> Card | None:
    """The card from card.json in the folder, or from a finished run's record; else None."""
    path = place / CARD
    if not path.is_file():
        return card_of(place, repo_id.rpartition("/")[2])
    try:
        return Card(**read_json(path))
    except (Damaged, TypeError) as wrong:
        raise UsageError(f"push_to_hub: {path} is no card ({wrong}); write it again, or pass card=.") from wrong


def _mixin() -> Any:
    """huggingface_hub's own mixin around a predictor; created on demand, since the package is optional."""
    try:
        from huggingface_hub import ModelHubMixin, snapshot_download
    except ImportError as missing:
        raise ImportError("push_to_hub and from_hub need huggingface_hub: pip install 'resolvent[hub]'.") from missing

    class OnHub(ModelHubMixin, library_name="resolvent", tags=list(TAGS)):
        def __init__(self, ready: Predictor, card: Card | None = None, name: str = "") -> None:
            self.ready, self.card, self.name = ready, card, name

        def _save_pretrained(self, save_directory: Path) -> None:
            write_for_hub(self.ready, save_directory, self.card, self.name)

        @classmethod
        def _from_pretrained(cls, *, model_id: str, **how: Any) -> OnHub:
            own = {key: how[key] for key in ("revision", "cache_dir", "force_download", "local_files_only", "token")}
            place = Path(snapshot_download(model_id, allow_patterns=list(FILES), **own))
            if not (place / WEIGHTS).is_file():
                raise UsageError(
                    f"from_hub: {model_id!r} holds no {WEIGHTS} of ours; push_to_hub writes one. Pickles are not read."
                )
            return cls(load(place), None, model_id)

    return OnHub


@contextmanager
def _in_words(call: str, repo_id: str) -> Iterator[None]:
    """Report connection, repository, permission and name errors in one line."""
    try:
        yield
    except UsageError:
        raise
    except Exception as wrong:
        if type(wrong).__module__.split(".")[0] not in CLIENT and not isinstance(wrong, OSError):
            raise
        lines = [line.strip() for line in str(wrong).splitlines() if line.strip()]
        message = lines[0] if lines else type(wrong).__name__
        raise UsageError(f"{call}: {repo_id!r}: {message}") from wrong
