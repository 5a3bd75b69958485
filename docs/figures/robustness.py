"""Pictures of threats, attacks, certificates and a stream, each from a model that is trained here or shipped."""

from __future__ import annotations

import numpy as np
import torch
from page import MUTED, SERIES, legend_above, panels, save
from torch import nn

import resolvent as rv
from resolvent.attacks import fgsm, pgd, sparse_steps


def perceptron(epochs: int = 6) -> tuple[nn.Module, rv.data.Task]:
    torch.manual_seed(0)
    task = rv.load_task("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    threat = rv.Threat("linf", eps=0.1, bounds=(0, 1))
    rv.fit(model, task, rv.pgd_at(threat, steps=4), rv.training.FitSettings(epochs=epochs, batch_size=64, lr=5e-3))
    return model.eval(), task


def threat_shapes() -> None:
    """One digit as a sequence, and what four attackers add to it."""
    model, task = perceptron()
    x, y = task.test.x[:1], task.test.y[:1]
    box = (0, 1)
    made = [
        ("linf, eps 0.2", pgd(model, x, y, rv.Threat("linf", 0.2, bounds=box), steps=20)),
        ("l2, eps 1", pgd(model, x, y, rv.Threat("l2", 1.0, bounds=box), steps=20)),
        ("two steps, eps 0.8", sparse_steps(model, x, y, rv.Threat("linf", 0.8, bounds=box, steps=2))),
        ("band below 0.1, eps 0.2", pgd(model, x, y, rv.Threat("linf", 0.2, band=(0.0, 0.1)), steps=20)),
    ]
    figure, axes = panels(4, (7.6, 2.2), sharey=True)
    for colour, one, (name, found) in zip(SERIES, axes, made, strict=True):
        one.plot(x[0, :, 0], color=MUTED, lw=0.9)
        one.plot(found.x_adv[0, :, 0] - x[0, :, 0], color=colour, lw=1.3)
        one.set(title=name, xlabel="step")
    save(figure, "threat_shapes")


def attack_strength() -> None:
    """Accuracy over eps for three attacks on a model, and on the same model with loud logits."""
    model, task = perceptron()
    x, y = task.test.x[:100], task.test.y[:100]
    sizes = [0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3]
    figure, axes = panels(2, (6.6, 2.5), sharey=True)
    for one, factor, title in zip(axes, (1, 2000), ("the model", "its logits times 2,000"), strict=True):

        def f(z: torch.Tensor, factor: int = factor) -> torch.Tensor:
            return factor * model(z)

        clean = float((f(x).argmax(1) == y).double().mean())
        curves: dict[str, list[float]] = {"FGSM": [clean], "PGD-10": [clean], "AutoAttack": [clean]}
        for eps in sizes[1:]:
            threat = rv.Threat("linf", eps, bounds=(0, 1))
            curves["FGSM"].append(float((~fgsm(f, x, y, threat).success).double().mean()))
            curves["PGD-10"].append(float((~pgd(f, x, y, threat, steps=10).success).double().mean()))
            curves["AutoAttack"].append(rv.autoattack(f, x, y, threat, preset="fast").accuracy)
        for colour, (name, values) in zip(SERIES, curves.items(), strict=False):
            one.plot(sizes, values, "o-", ms=3, lw=1.3, color=colour, label=name if factor == 1 else None)
        one.set(title=title, xlabel="eps, Linf", ylim=(-0.03, 1.03))
    axes[0].set_ylabel("accuracy")
    legend_above(axes[0])
    save(figure, "attack_strength")


def certified_curve() -> None:
    """Certified below, attacked above: the truth lies in between."""
    task = rv.load_task("digits")
    model = rv.models.pretrained("digits-l2ru-certified")
    x, y = task.test.x[:100], task.test.y[:100]
    gain = rv.analysis.certified_gain(model.gain_parts(task.length))
    proven = rv.analysis.certify(model, x, y, gain)
    sizes = np.linspace(0, 1.2, 60)
    tried = [0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.2]
    box = rv.Threat("l2", 0, bounds=(0, 1))
    attacked = list(rv.evaluate(model, (x, y), box, "fast", eps=tried[1:]).accuracy)
    attacked = [float(proven.correct.double().mean()), *attacked]
    certified = [proven.accuracy(float(e)) for e in sizes]
    figure, (one,) = panels(1, (4.8, 2.7))
    one.plot(tried, attacked, "o-", ms=3, lw=1.3, color=SERIES[1], label="under attack")
    one.plot(sizes, certified, lw=1.5, color=SERIES[0], label="certified")
    one.fill_between(sizes, certified, np.interp(sizes, tried, attacked), color=SERIES[2], alpha=0.18, lw=0)
    one.set(xlabel="eps, L2", ylabel="accuracy", ylim=(0, 1.02))
    legend_above(one)
    save(figure, "certified_curve")


def stream() -> None:
    """The share of "worn" after every sample, as docs/tutorials/stream.md trains its model."""
    rng = np.random.default_rng(0)

    def record(worn: bool, steps: int = 160) -> np.ndarray:
        t = np.arange(steps)
        hum = np.sin(0.2 * t + rng.uniform(0, 6))
        knock = worn * 1.5 * np.exp(-((t + rng.integers(25)) % 25) / 2)
        return np.stack([hum + knock, 0.5 * hum - knock], 1) + 0.3 * rng.normal(size=(steps, 2))

    kinds = np.array(["sound", "worn"] * 60)
    x = np.stack([record(kind == "worn") for kind in kinds]).astype("float32")
    task = rv.data.from_arrays(x, kinds, scale="standard", missing="ffill")
    torch.manual_seed(0)
    block = rv.models.ResidualConfig(rv.models.S5Config(16))
    config = rv.ModelConfig(rv.models.ChannelsConfig(2), block, rv.models.ClassifierConfig(2), d_model=16, layers=1)
    model = rv.build_model(config)
    rv.fit(model, task, settings=rv.training.FitSettings(epochs=8, batch_size=16, lr=1e-2))
    ready = rv.Predictor(model, task.preprocess)
    figure, (one,) = panels(1, (5.2, 2.4))
    for colour, worn, name in ((SERIES[1], True, "a worn machine"), (SERIES[0], False, "a sound one")):
        state, shares = None, []
        for sample in record(worn):
            answer, state = ready.step(sample, state)
            shares.append(float(answer[0][1]))
        one.plot(range(1, 161), shares, lw=1.4, color=colour, label=name)
    one.set(xlabel="samples seen", ylabel='share of "worn"', ylim=(-0.03, 1.03))
    legend_above(one)
    save(figure, "stream")


DRAW = (threat_shapes, attack_strength, certified_curve, stream)

if __name__ == "__main__":
    for draw in DRAW:
        draw()
