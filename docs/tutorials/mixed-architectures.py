# %% [markdown]
# # Graphs of mixed architectures
#
# Networks of different widths, depths and activations in one batch, read by one model, each under its own symmetries.
# For that, networks become graphs of torch-geometric.
#
# ## A zoo of many kinds
#
# Six architectures, 32 networks of each. Their accuracy on points of the plane is to be predicted.

# %%
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

torch.manual_seed(0)
points = torch.rand(400, 2) * 2 - 1
labels = ((points * 3).sin().prod(dim=1) > 0).float()
train, test = slice(0, 200), slice(200, 400)


def mlp(widths, activation):
    layers = [nn.Linear(2, widths[0])]
    for n, m in zip(widths, [*widths[1:], 1]):
        layers += [activation(), nn.Linear(n, m)]
    return nn.Sequential(*layers)


def trained(widths, activation, count=32, steps=80):
    """Networks side by side, name -> (count, *shape), and their accuracies."""
    skeleton = mlp(widths, activation)
    networks, _ = stack_module_state([mlp(widths, activation) for _ in range(count)])
    networks = {name: tensor.detach() for name, tensor in networks.items()}
    rates = 10 ** torch.empty(count).uniform_(-2.5, 0.5)

    def logits(network, part):
        return functional_call(skeleton, network, points[part]).squeeze(-1)

    def loss(network):
        return nn.functional.binary_cross_entropy_with_logits(logits(network, train), labels[train])

    for _ in range(steps):
        for name, gradient in vmap(grad(loss))(networks).items():
            networks[name] = networks[name] - rates.view(-1, *[1] * (gradient.ndim - 1)) * gradient
    right = vmap(lambda network: (logits(network, test) > 0) == labels[test].bool())(networks)
    return networks, right.float().mean(dim=1)


kinds = [
    ([8], nn.ReLU),
    ([16, 16], nn.ReLU),
    ([8, 12, 8], nn.ReLU),
    ([16], nn.Tanh),
    ([12, 8], nn.Tanh),
    ([12, 12], nn.GELU),
]

# %% [markdown]
# ## One batch of graphs
#
# Every architecture has its weight space: ReLU neurons may be scaled, tanh neurons flipped, GELU neurons permuted
# only. `to_graphs` makes one batch of all of them, with each neuron's symmetry beside it.

# %%
from nfn_monomial import WeightSpace
from nfn_monomial.adapters.pyg import common_kernel, to_graphs

spaces, batches, accuracies = [], [], []
for widths, activation in kinds:
    networks, accuracy = trained(widths, activation)
    space = WeightSpace.from_module(mlp(widths, activation), points[:4])
    spaces.append(space)
    batches.append(({name: tensor.unsqueeze(1) for name, tensor in networks.items()}, space))
    accuracies.append(accuracy)
    hidden = ", ".join(
        f"{node.size} {node.symmetry.name}" for node in space.nodes.values() if node.symmetry.name != "FIXED"
    )
    print(f"{widths!s:12} {activation.__name__:5} {hidden}")

graphs = to_graphs(batches).to_data_list()
for graph, accuracy in zip(graphs, torch.cat(accuracies)):
    graph.y = accuracy.view(1)
print(f"{len(graphs)} graphs; the first: {graphs[0]}")

# %% [markdown]
# ## One model
#
# `MonomialGNN` sends messages along the weights. It trains as any model of torch-geometric does.

# %%
from nfn_monomial.adapters.pyg import MonomialGNN
from torch_geometric.loader import DataLoader

order = torch.randperm(len(graphs)).tolist()
fitted, held_out = [graphs[i] for i in order[:144]], [graphs[i] for i in order[144:]]
pairs = graphs[0].stream_symmetry.shape[1]
model = MonomialGNN(channels=8, layers=2, kernel=common_kernel(*spaces), inputs=2, outputs=1, pairs=pairs)
optimizer = torch.optim.Adam(model.parameters(), 5e-3)
for _ in range(20):
    for batch in DataLoader(fitted, batch_size=24, shuffle=True):
        optimizer.zero_grad()
        (model(batch).squeeze(-1) - batch.y).square().mean().backward()
        optimizer.step()

(batch,) = DataLoader(held_out, batch_size=len(held_out))
model.eval()
with torch.no_grad():
    error = (model(batch).squeeze(-1) - batch.y).abs().mean()
guess = (torch.cat([graph.y for graph in fitted]).mean() - batch.y).abs().mean()
print(f"mean error on 48 networks that were held out: {error:.3f}; guessing the mean: {guess:.3f}")

# %% [markdown]
# ## Moved, each by its own group

# %%
from nfn_monomial.adapters.pyg import act, random_graph_element

moved = act(batch, random_graph_element(batch))
with torch.no_grad():
    changed = (model(moved) - model(batch)).abs().max()
print(f"edges have changed by up to {(moved.edge_attr - batch.edge_attr).abs().max():.2g}, answers by {changed:.1g}")

# %% [markdown]
# What a graph holds, and how the layers mix with others of torch-geometric: [for users of
# torch-geometric](../torch-geometric.md).
