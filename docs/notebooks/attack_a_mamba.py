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
# # Attack a Mamba
#
# A selective layer reads its step size, B and C from the input, so an attacker who changes the input also changes what
# the model remembers. This notebook trains a small Mamba on the embedded digits (sequences of 64 pixels), attacks it,
# and looks at where the attack acts. About a minute on one core.

# %%
import matplotlib.pyplot as plt
import torch

import resolvent as rv
from resolvent.analysis import hidden_attention

torch.manual_seed(0)
task = rv.load_task("digits")
block = rv.models.MambaConfig(d_state=8, width=16)
head = rv.models.ClassifierConfig(10, pooling="last")
config = rv.ModelConfig(rv.models.ChannelsConfig(1), block, head, d_model=16, layers=1)
model = rv.build_model(config)
history = rv.fit(model, task, settings=rv.training.FitSettings(epochs=12, batch_size=64, lr=1e-2))
model.eval()
print(f"clean accuracy on the test split: {history.summary['best']['test_clean']:.3f}")

# %% [markdown]
# ## The attack
#
# Every pixel may change by at most 0.05. `fast` is a short list of attacks; publish `standard`.

# %%
x, y = task.test.x[:64], task.test.y[:64]
threat = rv.Threat("linf", eps=0.05, bounds=(0, 1))
found = rv.autoattack(model, x, y, threat, preset="fast")
print(found)
assert found.accuracy <= found.clean_accuracy

# %% [markdown]
# ## What the attacker changed
#
# One broken sample: the pixels, and the perturbation. Compare its signs with the strokes of the digit.

# %%
broken = int((~found.robust & (model(x).argmax(1) == y)).nonzero()[0, 0])
fig, axes = plt.subplots(1, 3, figsize=(7, 2.4))
for ax, picture, title in zip(
    axes,
    (x[broken], found.x_adv[broken], found.x_adv[broken] - x[broken]),
    (f"clean: {int(y[broken])}", f"attacked: {int(model(found.x_adv[broken : broken + 1]).argmax())}", "difference"),
    strict=True,
):
    ax.imshow(picture.view(8, 8), cmap="gray")
    ax.set(title=title, xticks=[], yticks=[])
plt.show()

# %% [markdown]
# ## What the attack does to the memory
#
# Along one input a selective layer is a matrix, y = M u. Here is that matrix for the layer inside the block, without
# and with the perturbation. A constant layer (S4D) would show the same matrix twice.

# %%
layer = next(m for m in model.modules() if isinstance(m, rv.S6))
inputs = []
hook = layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
with torch.no_grad():
    model(x[broken : broken + 1]), model(found.x_adv[broken : broken + 1])
hook.remove()
clean, attacked = (hidden_attention(layer.linearise(u))[0].abs().sum(0).detach() for u in inputs)
change = (attacked - clean).abs()
fig, axes = plt.subplots(1, 2, figsize=(7, 3))
axes[0].imshow(clean.sqrt(), cmap="viridis")
axes[0].set(title="|M|, clean", xlabel="input step", ylabel="output step")
axes[1].imshow(change.sqrt(), cmap="viridis")
axes[1].set(title="change of |M| under attack", xlabel="input step")
plt.show()
print(f"the attack changes M by {float(change.norm() / clean.norm()):.1%} of its size")
assert float(change.norm()) > 0

# %% [markdown]
# ## Train against it
#
# The same threat inside training (TRADES). Fewer epochs here, so that the notebook stays short.

# %%
torch.manual_seed(0)
robust = rv.build_model(config)
rv.fit(robust, task, rv.trades(threat, beta=3.0, steps=3), rv.training.FitSettings(epochs=12, batch_size=64, lr=1e-2))
after = rv.autoattack(robust.eval(), x, y, threat, preset="fast")
print(f"robust accuracy {found.accuracy:.2f} before, {after.accuracy:.2f} after (clean {after.clean_accuracy:.2f})")
