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
# # See a transfer function
#
# A time-invariant layer multiplies every frequency by a complex number, G. This notebook draws |G| of an S4D layer,
# finds its peak, drives the layer with a tone there, and checks that no other input does better. Seconds on one core.

# %%
import math

import matplotlib.pyplot as plt
import torch

import resolvent as rv
from resolvent.analysis import frequency_response, hankel_singular_values, hinf_norm, poles

torch.manual_seed(0)
layer = rv.S4D(d_model=1, d_state=32, init="legs", dt_min=0.01, dt_max=0.01, skip=False).double()
system = layer.system()
print(f"{system.A.dense().shape[-1]} states, one input, one output")

# %% [markdown]
# ## Poles
#
# The eigenvalues of the discrete system. All lie inside of the unit circle, so the layer is stable; those near the
# circle ring for a long time.

# %%
lam = poles(system).detach().flatten()
t = torch.linspace(0, 2 * math.pi, 300)
plt.figure(figsize=(3.2, 3.2))
plt.plot(t.cos(), t.sin(), lw=0.8)
plt.plot(lam.real, lam.imag, "o", ms=3)
plt.gca().set_aspect("equal")
plt.show()
assert float(lam.abs().max()) < 1

# %% [markdown]
# ## Gain over frequency

# %%
w = torch.logspace(-2, math.log10(math.pi), 2000, dtype=torch.float64)
gain = frequency_response(system, w).detach().abs().flatten()
norm = hinf_norm(system)
peak, at = float(norm.value.detach()), float(norm.frequency)
print(f"H-infinity norm {peak:.3f} at {at:.4f} radians a step; the grid saw {float(gain.max()):.3f}")
plt.figure(figsize=(5, 2.6))
plt.loglog(w, gain)
plt.axhline(peak, ls="--", lw=0.8)
plt.xlabel("radians a step")
plt.ylabel("|G|")
plt.show()
assert float(gain.max()) <= float(norm.upper.max()) * (1 + 1e-9)

# %% [markdown]
# A grid can miss a narrow peak; `hinf_norm` returns a lower and an upper bound that hold between the grid points.
#
# ## A tone at the peak
#
# Energy out by energy in, for a long tone at the peak, for a tone elsewhere, and for noise. None exceeds the norm.

# %%
k = torch.arange(20_000, dtype=torch.float64)
inputs = {
    "tone at the peak": torch.cos(at * k),
    "tone at a third of it": torch.cos(at / 3 * k),
    "white noise": torch.randn(20_000, dtype=torch.float64),
}
for name, u in inputs.items():
    y = layer(u[None, :, None])[0].detach()
    ratio = float(y.norm() / u.norm())
    print(f"{name:22s} {ratio:.3f}")
    assert ratio <= float(norm.upper.max()) * (1 + 1e-9)

# %% [markdown]
# ## How many states does it need?
#
# Hankel singular values say how much each direction of the state matters to input and output together. Where they fall
# steeply, states can be removed with a known error (`resolvent reduce`).

# %%
sigma = hankel_singular_values(system).detach().flatten()
plt.figure(figsize=(5, 2.4))
plt.semilogy(range(1, len(sigma) + 1), sigma, "o-", ms=3)
plt.xlabel("state")
plt.show()
print(f"largest {float(sigma[0]):.3f}, smallest {float(sigma[-1]):.1e}")

# %% [markdown]
# ## The same layer, started by PTD
#
# S4D-LegS has a resonance near N^2 / pi. Perturb-then-diagonalise has not.

# %%
torch.manual_seed(0)
other = rv.S4D(d_model=1, d_state=32, init="ptd", dt_min=0.01, dt_max=0.01, skip=False).double().system()
plt.figure(figsize=(5, 2.6))
for name, one in (("legs", system), ("ptd", other)):
    plt.loglog(w, frequency_response(one, w).detach().abs().flatten(), label=name)
    print(f"{name:5s} H-infinity norm {float(hinf_norm(one).value.detach()):.3f}")
plt.legend()
plt.xlabel("radians a step")
plt.show()
