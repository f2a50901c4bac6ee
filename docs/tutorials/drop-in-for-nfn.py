# %% [markdown]
# # Drop-in for nfn
#
# You have a pipeline of the [nfn](https://github.com/AllanYangZhou/nfn) package: specs, `WeightSpaceFeatures`,
# `HNPLinear`. Its layers know that hidden neurons may be permuted. Change some class names, and they also know that
# neurons may be scaled.
#
# ## Networks, as nfn holds them
#
# 128 ReLU networks 2-16-16-1, trained side by side to classify points of the plane, each with its own learning rate.

# %%
import torch
from nfn.common import WeightSpaceFeatures, network_spec_from_wsfeat
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

torch.manual_seed(0)
points = torch.rand(200, 2) * 2 - 1
labels = ((points * 3).sin().prod(dim=1) > 0).float()


def classifier():
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))


skeleton = classifier()
zoo, _ = stack_module_state([classifier() for _ in range(128)])
zoo = {name: tensor.detach() for name, tensor in zoo.items()}
rates = 10 ** torch.empty(128).uniform_(-2.5, 0.5)


def loss(network):
    logits = functional_call(skeleton, network, points).squeeze(-1)
    return nn.functional.binary_cross_entropy_with_logits(logits, labels)


for _ in range(100):
    for name, gradient in vmap(grad(loss))(zoo).items():
        zoo[name] = zoo[name] - rates.view(-1, *[1] * (gradient.ndim - 1)) * gradient
losses = vmap(loss)(zoo).detach()


def features(weights, biases):
    """(B, out, in) and (B, out) -> with nfn's dimension of channels."""
    return WeightSpaceFeatures([w.unsqueeze(1) for w in weights], [b.unsqueeze(1) for b in biases])


weights, biases = [zoo[f"{i}.weight"] for i in (0, 2, 4)], [zoo[f"{i}.bias"] for i in (0, 2, 4)]
networks = features(weights, biases)
spec = network_spec_from_wsfeat(networks)

# %% [markdown]
# The same functions with other weights: what enters a hidden neuron is multiplied by a number, what leaves it is
# divided by it.

# %%
d1, d2 = (torch.empty(128, 16).uniform_(1, 100) for _ in range(2))
moved = features(
    [weights[0] * d1[:, :, None], weights[1] * d2[:, :, None] / d1[:, None], weights[2] / d2[:, None]],
    [biases[0] * d1, biases[1] * d2, biases[2]],
)

# %% [markdown]
# ## Before and after
#
# Left as it was, right with the names changed. `MonomialActivation` is nfn's `TupleOp` that refuses functions which
# would break the symmetry. `MonomialCanonicalize` takes the scales away; any layer of nfn may follow it.

# %%
from nfn.layers import HNPLinear, HNPPool, TupleOp
from nfn_monomial.adapters.nfn import MonomialActivation, MonomialBalance, MonomialCanonicalize, MonomialLinear

pooled = 8 * HNPPool.get_num_outs(spec)
before = nn.Sequential(
    HNPLinear(spec, 1, 8),
    TupleOp(nn.ReLU()),
    HNPLinear(spec, 8, 8),
    TupleOp(nn.ReLU()),
    HNPPool(spec),
    nn.Flatten(),
    nn.Linear(pooled, 1),
)
after = nn.Sequential(
    MonomialLinear(spec, 1, 8, symmetry="relu"),
    MonomialActivation(spec, torch.relu, symmetry="relu"),
    MonomialCanonicalize(spec, 8, symmetry="relu"),
    HNPLinear(spec, 8, 8),
    TupleOp(nn.ReLU()),
    HNPPool(spec),
    nn.Flatten(),
    nn.Linear(pooled, 1),
)

# %% [markdown]
# If you would rather not touch your layers, put the canonical form of the networks in front of them:

# %%
in_front = nn.Sequential(
    MonomialBalance(spec, symmetry="relu"),
    HNPLinear(spec, 1, 8),
    TupleOp(nn.ReLU()),
    HNPLinear(spec, 8, 8),
    TupleOp(nn.ReLU()),
    HNPPool(spec),
    nn.Flatten(),
    nn.Linear(pooled, 1),
)

# %% [markdown]
# ## Trained, and asked about moved networks
#
# Each learns the training loss that a network has reached, from 96 networks. The other 32 are the test.


# %%
def rows(networks, index):
    return WeightSpaceFeatures([w[index] for w in networks.weights], [b[index] for b in networks.biases])


def fit(model):
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(15):
        for index in torch.randperm(96).split(16):
            optimizer.zero_grad()
            (model(rows(networks, index)).squeeze(-1) - losses[index]).square().mean().backward()
            optimizer.step()


test = torch.arange(96, 128)
for name, model in {"nfn": before, "names changed": after, "canonical form in front": in_front}.items():
    fit(model)
    with torch.no_grad():
        errors = [(model(rows(x, test)).squeeze(-1) - losses[test]).abs().mean() for x in (networks, moved)]
    print(f"{name:24} error as they are {errors[0]:.3f}, moved {errors[1]:.3g}")

# %% [markdown]
# The pipeline as it was is lost once networks are scaled; the other two answer as before. The canonical form keeps
# more of the accuracy here, as it does on other [ReLU networks](../results.md), and needs one line.
#
# The table of names is in [for users of nfn](../nfn.md).
