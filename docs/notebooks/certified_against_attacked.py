# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Certified against attacked
#
# Two numbers bound the truth: what a certificate proves from below, what an attack reaches from above. This notebook
# draws both for a model with a built-in gain, shows how the gain trades accuracy for radius, and tries to break the
# certificate. About a minute on one core.

# %%
import matplotlib.pyplot as plt
import torch

import resolvent as rv

torch.manual_seed(0)
task = rv.load_task("digits")
x, y = task.test.x[:100], task.test.y[:100]
sizes = [0.1, 0.25, 0.5, 0.75, 1.0]


def both(model):
    """Certified and attacked accuracy at each size, and the certificate."""
    gain = rv.analysis.certified_gain(model.gain_parts(task.length))
    proven = rv.analysis.certify(model, x, y, gain)
    curve = rv.evaluate(model, (x, y), rv.Threat("l2", 0, bounds=(0, 1)), "fast", eps=sizes)
    return [proven.accuracy(e) for e in sizes], list(curve.accuracy), proven, gain


# %% [markdown]
# ## A model from the package

# %%
model = rv.models.pretrained("digits-l2ru-certified")
certified, attacked, proven, gain = both(model)
print(f"Lipschitz constant {gain.value:.3f}")
for e, low, high in zip(sizes, certified, attacked, strict=True):
    print(f"L2 {e:4}: {low:.2f} <= robust accuracy <= {high:.2f}")
    assert low <= high
plt.figure(figsize=(5, 2.8))
plt.plot(sizes, attacked, "o-", label="under attack")
plt.plot(sizes, certified, "o-", label="certified")
plt.fill_between(sizes, certified, attacked, alpha=0.15)
plt.xlabel("L2 size")
plt.ylabel("accuracy")
plt.legend()
plt.show()

# %% [markdown]
# ## Two gains
#
# A larger gain fits more and certifies less far. Trained briefly:

# %%
for bound in (2.0, 8.0):
    torch.manual_seed(0)
    trained = rv.build_model(rv.models.presets.l2ru_classifier(gain=bound, d_model=1, layers=1, hidden=32))
    settings = rv.training.FitSettings(epochs=12, batch_size=64, lr=5e-3, weight_decay=0.0)
    rv.fit(trained, task, settings=settings)
    low, high, made, _ = both(trained.eval())
    right = float(made.correct.double().mean())
    print(f"gain {bound}: right {right:.2f}; certified {low[1]:.2f} and attacked {high[1]:.2f} at L2 0.25")

# %% [markdown]
# ## Try to break it
#
# Inside of the certified radius every direction must fail. We push each sample to 99 % of its own radius, along its
# gradient and along random directions. A single success would refute the certificate.

# %%
safe = proven.radius > 0
inside = 0.99 * proven.radius[safe].float()
clean, labels = x[safe], y[safe]
broken = 0
for attempt in range(20):
    if attempt == 0:
        moved = clean.clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy(model(moved), labels)
        direction = torch.autograd.grad(loss, moved)[0]
    else:
        direction = torch.randn_like(clean)
    step = direction / direction.flatten(1).norm(dim=1).clamp_min(1e-12)[:, None, None]
    broken += int((model(clean + inside[:, None, None] * step).argmax(1) != labels).sum())
print(f"{20 * int(safe.sum())} attempts inside of the radius, {broken} broken")
assert broken == 0

# %% [markdown]
# ## And without a bound?
#
# A free S4D classifier has no usable constant; the certificate names the parts that break it and invents no number.

# %%
free = rv.build_model(rv.ModelConfig(d_model=8, layers=1)).eval()
print(rv.analysis.certified_gain(free.gain_parts(task.length)).explanation)
