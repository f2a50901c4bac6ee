# %% [markdown]
# # A first functional in ten minutes
#
# A *neural functional* is a network that reads networks. Here one learns to tell how accurate a classifier is, from
# the classifier's weights alone. Then we change the weights without changing what they compute, and look who notices.
#
# ## A zoo
#
# A *zoo* is a set of trained networks. Ours are 256 small classifiers of points in the plane, trained side by side.
# Each has its own learning rate, so some end well and some badly.

# %%
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

torch.manual_seed(0)
points = torch.rand(400, 2) * 2 - 1
labels = ((points * 3).sin().prod(dim=1) > 0).float()  # a chessboard of waves
train, test = slice(0, 200), slice(200, 400)


def classifier():
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))


skeleton = classifier()
zoo, _ = stack_module_state([classifier() for _ in range(256)])  # name -> (256, *shape)
zoo = {name: tensor.detach() for name, tensor in zoo.items()}
rates = 10 ** torch.empty(256).uniform_(-2.5, 0.5)


def loss(network):
    logits = functional_call(skeleton, network, points[train]).squeeze(-1)
    return nn.functional.binary_cross_entropy_with_logits(logits, labels[train])


for _ in range(100):
    for name, gradient in vmap(grad(loss))(zoo).items():
        zoo[name] = zoo[name] - rates.view(-1, *[1] * (gradient.ndim - 1)) * gradient


def accuracy(networks):
    logits = vmap(lambda network: functional_call(skeleton, network, points[test]).squeeze(-1))(networks)
    return ((logits > 0) == labels[test].bool()).float().mean(dim=1)


accuracies = accuracy(zoo)
print(f"accuracies from {accuracies.min():.2f} to {accuracies.max():.2f}")

# %% [markdown]
# ## Its symmetries
#
# `WeightSpace.from_module` finds out which changes of the weights leave the function as it is, and tests them. A ReLU
# neuron may change places with others of its layer, and it may be scaled.

# %%
from nfn_monomial import WeightSpace

space = WeightSpace.from_module(skeleton, points[:4])
print(space.explain())

# %% [markdown]
# An element of this group makes other weights of ours. Here neurons are permuted and scaled by up to 1,000:

# %%
moved = space.sample(256, scale_range=(1, 1e3)).act(zoo)
changed = (moved["2.weight"] - zoo["2.weight"]).abs().mean() / zoo["2.weight"].abs().mean()
print(f"weights of the second layer have changed by {changed:.0%} of their size")
print(f"accuracies have changed by {(accuracy(moved) - accuracies).abs().max():.3f} at most")

# %% [markdown]
# ## Two models
#
# `MessagePassingNFN` respects the group. Beside it stands a model that reads the mean and the size of every tensor:
# simple, and good at it, but it only knows that neurons may change places. Both learn from 192 networks and are
# tested on the other 64.

# %%
from nfn_monomial.models import MessagePassingNFN


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * len(zoo), 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, networks):
        flat = [tensor.flatten(1) for tensor in networks.values()]
        return self.layers(torch.stack([t.mean(1) for t in flat] + [t.square().mean(1).sqrt() for t in flat], dim=1))


def rows(networks, index):
    """Networks with these numbers, with the dimension of channels that models expect: name -> (N, 1, *shape)."""
    return {name: tensor[index].unsqueeze(1) for name, tensor in networks.items()}


def fit(model, epochs=15):
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(epochs):
        for index in torch.randperm(192).split(32):
            optimizer.zero_grad()
            (model(rows(zoo, index)).squeeze(-1) - accuracies[index]).square().mean().backward()
            optimizer.step()
    return model.eval()


ours, statistics = fit(MessagePassingNFN(space, channels=8, layers=1)), fit(Statistics())

# %% [markdown]
# ## Who notices?
#
# Kendall's tau says how well predictions rank the test networks: 1 is perfect, 0 is chance. The error is the mean
# distance between the predicted accuracy and the true one.

# %%
from scipy.stats import kendalltau

index = torch.arange(192, 256)


@torch.no_grad()
def judged(model, networks):
    predicted = model(rows(networks, index)).squeeze(-1)
    error = (predicted - accuracies[index]).abs().mean()
    return f"tau {kendalltau(predicted, accuracies[index]).statistic:.2f}, error {error:.2g}"


for name, model in {"message passing": ours, "statistics": statistics}.items():
    print(f"{name:16} as they are: {judged(model, zoo)};   moved: {judged(model, moved)}")

# %% [markdown]
# The equivariant model gives the same answers, to rounding, whatever the scales are; statistics of scaled weights say
# nothing. That is a property of its layers and not of its training; `assert_invariant` tests it for any model, and
# names the layer or field that breaks it.

# %%
from nfn_monomial.testing import assert_invariant

assert_invariant(ours.double(), space)

# %% [markdown]
# Next: the same with [your own checkpoints](own-checkpoints.py), or [which model when](../which-model.md).
