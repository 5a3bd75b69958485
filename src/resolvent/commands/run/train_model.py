"""The model of `resolvent run train`: from its options to a ModelConfig that fits the task."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any, get_args

from resolvent.commands.run.arguments import list_given
from resolvent.commands.run.check import require_within
from resolvent.commands.run.train_options import ModelOptions
from resolvent.data import Task
from resolvent.experiments.recipes.bounded import bounded_model, regression_head
from resolvent.init.timestep import time_scales
from resolvent.models import config as c
from resolvent.models.layer_config import L2RUConfig, LayerConfig
from resolvent.models.presets.named import named_preset
from resolvent.models.reservoir import reservoir_config
from resolvent.models.settings import choices_of
from resolvent.usage.error import UsageError
from resolvent.usage.numbers import check_choice

WIDEST, DEEPEST = 8192, 256
WHOLE = {
    "mamba": c.MambaConfig,
    "mega": c.MegaConfig,
    "hawk": c.HawkConfig,
    "griffin": c.GriffinConfig,
    "h3": c.H3Config,
    "attention": c.AttentionConfig,
}
RESERVOIR, SYSTEMS, MOST_SAMPLES = "reservoir", 250, 20_000
MIXERS = ("glu", "mlp", "linear", "half_glu1", "half_glu2", "none")
FIXED = ("--layer", "--block", "--init", "--bidirectional", "--certified", "--gamma")  # fixed by a preset


def layer_kinds() -> dict[str, Any]:
    """Layers by the name of their settings (S4DConfig is s4d), and whole blocks."""
    own = {kind.__name__.removesuffix("Config").lower(): kind for kind in get_args(LayerConfig)}
    return {name: kind for name, kind in own.items() if _free(kind)} | WHOLE


def _free(kind: Any) -> bool:
    """Whether it has no required arguments."""
    return all(f.default is not MISSING or f.default_factory is not MISSING for f in fields(kind))


def check_model(options: ModelOptions) -> None:
    """Refuse options that are wrong for any data, before the data are read."""
    require_within("--width", options.width, 1, WIDEST)
    require_within("--layers", options.layers, 1, DEEPEST)
    if options.preset is not None:
        named_preset(options.preset)
        fixed = [name for name in list_given(options) if name in FIXED]
        if fixed:
            raise UsageError(f"{fixed[0]} is part of the preset {options.preset!r}: leave one of the two out.")
        return
    if layer_of(options) == RESERVOIR:
        fixed = [name for name in list_given(options) if name not in ("--layer", "--width")]
        if fixed:
            raise UsageError(f"{fixed[0]} is no choice of a reservoir, whose systems are random: leave it out.")
        return
    check_choice("run train", "--layer", layer_of(options), (*layer_kinds(), RESERVOIR))
    if options.block is not None:
        check_choice("run train", "--block", options.block, (*MIXERS, *WHOLE))
        if options.block in WHOLE and options.layer not in (None, options.block):
            raise UsageError(f"--block {options.block} has a layer of its own: leave --layer {options.layer} out.")
        if options.layer in WHOLE and options.block != options.layer:
            raise UsageError(f"--layer {options.layer} is a whole block: leave --block {options.block} out.")
    if options.certified:
        wrong = [name for name in list_given(options) if name in ("--block", "--init", "--ads", "--bidirectional")]
        if wrong:
            raise UsageError(f"{wrong[0]} has no place in the model that --certified builds: leave one of them out.")
    _check_gamma(options)


def _check_gamma(options: ModelOptions) -> None:
    if options.gamma is None:
        return
    if not options.certified and layer_of(options) != "l2ru":
        raise UsageError(
            "--gamma is the gain of an l2ru layer, or the Lipschitz bound of a certified model; add --layer l2ru or "
            "--certified, or leave it out."
        )
    if not 0 < options.gamma < float("inf"):
        what = "the Lipschitz bound of the model" if options.certified else "the gain of each layer"
        raise UsageError(f"--gamma, {what}, must be positive and finite, got {options.gamma}.")


def layer_of(options: ModelOptions) -> str:
    """The layer or whole block requested."""
    if options.block in WHOLE:
        return str(options.block)
    return options.layer or ("l2ru" if options.certified else "s4d")


def name_of(options: ModelOptions) -> str:
    """The model's part of the run's name."""
    if options.preset is not None:
        own = options.preset
    else:
        own = f"{layer_of(options)}-certified" if options.certified else layer_of(options)
    return own if options.ads is None else f"{own}+{options.ads}"


def model_for(task: Task, options: ModelOptions) -> c.ModelConfig:
    """A pre-norm stack for the task's input and outputs, a published model, or the certifiable one."""
    if options.preset is not None:
        return _apply_sizes(_fit_to_task(named_preset(options.preset), task, options.preset), options)
    if layer_of(options) == RESERVOIR:
        return _reservoir(task, SYSTEMS if options.width is None else options.width)
    width = 64 if options.width is None else options.width
    layers = 4 if options.layers is None else options.layers
    if options.certified:
        return bounded_model(task, layer_of(options), options.gamma, width, layers)
    config = c.ModelConfig(_input(task), _block(task, options, width), _head(task), width, layers, final_norm=True)
    return _apply_sizes(config, options)


def _reservoir(task: Task, systems: int) -> c.ModelConfig:
    if task.classes is None or task.vocabulary is not None or task.pair:
        raise UsageError(f"--layer reservoir tells classes of real values apart, and {task.name} is of another kind.")
    if len(task.train) > MOST_SAMPLES:
        raise UsageError(
            f"--layer reservoir solves for all samples at once, for at most {MOST_SAMPLES:,}, and {task.name} has "
            f"{len(task.train):,} in training; another layer is trained on any number."
        )
    return reservoir_config(task.channels or 1, max(task.classes, 2), systems)


def explain_narrow(task: Task, model: c.ModelConfig) -> str | None:
    """Why a certified model of real targets will hardly follow them: its bound is in their units."""
    spread = 0.0 if task.classes is not None else float(task.train.y.double().std())
    if model.certified is None or spread <= model.certified.gain:
        return None
    return (
        f"the targets' deviation is {spread:.3g}, and outputs move by at most {model.certified.gain:g} for a change of "
        f"the input of norm 1; --gamma {spread:.2g} lets them follow"
    )


def _apply_sizes(config: c.ModelConfig, options: ModelOptions) -> c.ModelConfig:
    ads = config.ads if options.ads is None else c.AdSConfig(options.ads)
    return replace(config, d_model=options.width or config.d_model, layers=options.layers or config.layers, ads=ads)


def _block(task: Task, options: ModelOptions, width: int) -> Any:
    name = layer_of(options)
    kind: Any = layer_kinds()[name]
    made = kind(**time_scales(kind, task.length) | _sizes(kind, task, width) | _choices(kind, name, options))
    return made if name in WHOLE else c.ResidualConfig(made, mixer=options.block or "glu")  # type: ignore[arg-type]


def _choices(kind: Any, name: str, options: ModelOptions) -> dict[str, Any]:
    """What the user chose for the layer; an option that it lacks is refused, naming the layers that have it."""
    chosen: dict[str, Any] = {}
    if options.init is not None:
        _require_field(kind, "init", f"--init is no choice of {name}")
        check_choice("run train", f"--init of {name}", options.init, choices_of(kind, "init"))
        chosen["init"] = options.init
    if options.bidirectional:
        _require_field(kind, "bidirectional", f"{name} runs forward alone; --bidirectional is no choice of it")
        chosen["bidirectional"] = True
    if options.gamma is not None and kind is L2RUConfig:
        chosen["gamma"] = options.gamma
    return chosen


def _require_field(kind: Any, field: str, why: str) -> None:
    if field not in {each.name for each in fields(kind)}:
        have = [name for name, other in layer_kinds().items() if field in {each.name for each in fields(other)}]
        raise UsageError(f"{why}: leave it out, or take one of {', '.join(have)}.")


def _sizes(kind: Any, task: Task, width: int) -> dict[str, Any]:
    """Block settings that depend on length and width."""
    heads = next((h for h in (4, 2) if width % (4 * h) == 0), 1)  # rotary positions rotate pairs in each half of a head
    if kind is c.MegaConfig:
        return {"max_length": max(1024, task.length)}
    if kind is c.AttentionConfig:
        return {"heads": heads}
    return {"attention_heads": heads} if kind is c.GriffinConfig else {}


def _input(task: Task) -> c.InputConfig:
    return c.TokensConfig(task.vocabulary) if task.vocabulary is not None else c.ChannelsConfig(task.channels or 1)


def _head(task: Task) -> c.HeadConfig:
    if task.classes is None:
        return regression_head(task)
    return c.RetrievalConfig(task.classes) if task.pair else c.ClassifierConfig(task.classes, "mean")


# -- a published model for your own data ------------------------------------------------------------------------------


def _fit_to_task(config: c.ModelConfig, task: Task, name: str) -> c.ModelConfig:
    """The same model with the task's input and outputs; one for another kind of data is refused."""
    entry, head = _input(task), _head(task)
    if type(entry) is not type(config.input):
        takes = "tokens" if isinstance(config.input, c.TokensConfig) else "channels of real values"
        raise UsageError(f"--preset {name} reads {takes}, and {task.name} has {_kind(task)}; choose another.")
    if type(head) is not type(config.head):
        gives = {c.ClassifierConfig: "classes", c.RegressionConfig: "real values"}.get(type(config.head), "pairs")
        wants = "pairs" if task.pair else "real values" if task.classes is None else "classes"
        raise UsageError(f"--preset {name} answers with {gives}, and {task.name} needs {wants}; choose another.")
    entry = _take(config.input, entry, ("vocab", "channels"))
    head = _take(config.head, head, ("outputs", "pooling") if task.classes is None else ("classes",))
    return replace(config, input=entry, head=head, block=_reaching(config.block, task.length))


def _kind(task: Task) -> str:
    return "tokens" if task.vocabulary is not None else "real values"


def _take(own: Any, asked: Any, names: tuple[str, ...]) -> Any:
    """Settings with those fields of others of their kind, as far as they have them."""
    return replace(own, **{name: getattr(asked, name) for name in names if hasattr(own, name)})


def _reaching(block: c.BlockConfig, length: int) -> c.BlockConfig:
    """Set a block's number of positions to at least the number of steps."""
    return replace(block, max_length=max(block.max_length, length)) if isinstance(block, c.MegaConfig) else block
