# %% [markdown]
# # Your own checkpoints
#
# You have a folder of checkpoints of one architecture. Here a predictor of their accuracy is trained on them, by two
# commands and in Python; a family of them gets its tree, and p-values; and two that were trained apart are merged.
#
# ## A folder of checkpoints
#
# Yours is there already. This one has 80 small classifiers of digits, trained for one to forty steps.

# %%
import tempfile
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
centres = torch.randn(10, 64)
labels = torch.randint(10, (600,))
images = centres[labels] + 2.5 * torch.randn(600, 64)  # ten blurred patterns of 64 pixels
train, test = slice(0, 300), slice(300, 600)


def classifier():
    return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 10))


def trained(steps):
    net = classifier()
    optimizer = torch.optim.Adam(net.parameters(), 0.005)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images[train]), labels[train]).backward()
        optimizer.step()
    return net


@torch.no_grad()
def accuracy(net):
    return (net(images[test]).argmax(1) == labels[test]).float().mean().item()


folder = Path(tempfile.mkdtemp())
accuracies = []
for number in range(80):
    net = trained(steps=1 + number // 2)
    torch.save(net.state_dict(), folder / f"{number:02}.pt")
    accuracies.append(accuracy(net))
print(f"80 checkpoints, accuracies from {min(accuracies):.2f} to {max(accuracies):.2f}")

# %% [markdown]
# ## A predictor, in two commands
#
# A table says what became of each, and a file has the class. The command `train` learns any column of the table:
# accuracies here, losses or optimisers as well. Networks are drawn to choose a model by, and others to test it. What it
# prints is explained in [learn from your own checkpoints](../learn.md), where groups, splits and classes are, too.

# %%
import subprocess
import sys

table = [f"{number:02},{value:.4f}" for number, value in enumerate(accuracies)]
(folder / "results.csv").write_text("\n".join(["name,accuracy", *table]))
(folder / "net.py").write_text(
    "import torch\n"
    "from torch import nn\n"
    "def classifier():\n"
    "    layers = (nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 10))\n"
    "    return nn.Sequential(*layers), torch.randn(8, 64)\n"
    "def test_set():\n"
    "    return torch.utils.data.TensorDataset(*torch.load('test.tensors'))\n"
)
torch.save((images[test], labels[test]), folder / "test.tensors")


def run(command):
    words = [sys.executable, "-m", "nfn_monomial.tools", *command.split()]
    print(subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout)


run("train . --net net.py:classifier --targets results.csv --column accuracy --models stats,probes-stats --epochs 30")

# %% [markdown]
# The predictor is asked about checkpoints that it has not seen. These two were trained for 3 and 30 steps.

# %%
new = [trained(steps=3), trained(steps=30)]
for number, net in enumerate(new):
    torch.save(net.state_dict(), folder / f"new{number}.pt")
print("true:", [round(accuracy(net), 2) for net in new])
run("predict new0.pt new1.pt --predictor results/train/predictor.safetensors --net net.py:classifier")

# %% [markdown]
# ## The same in Python
#
# The weight space is derived from the class and an example of its inputs. Invariant statistics are the first thing to
# try: they see the weights only, respect every symmetry, and have little to learn. With thousands of checkpoints,
# take `MessagePassingNFN` ([which model when](../which-model.md)).

# %%
from nfn_monomial import WeightSpace
from nfn_monomial.adapters.modules import stack_networks
from nfn_monomial.tools.files.networks import load_checkpoint
from nfn_monomial.read import InvariantStatistics

space = WeightSpace.from_module(classifier(), images[:8])
networks = stack_networks([load_checkpoint(path) for path in sorted(folder.glob("*.pt"))], space)
targets = torch.tensor(accuracies)

statistics = InvariantStatistics(space)
seen = statistics(networks)  # (80, features)
order = torch.randperm(80)
fitted, held_out = order[:60], order[60:]
predictor = nn.Sequential(
    nn.BatchNorm1d(seen.shape[1]), nn.Linear(seen.shape[1], 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid()
)
optimizer = torch.optim.AdamW(predictor.parameters(), 0.01, weight_decay=0.1)
for _ in range(100):
    optimizer.zero_grad()
    (predictor(seen[fitted]).squeeze(1) - targets[fitted]).square().mean().backward()
    optimizer.step()

predictor.eval()
with torch.no_grad():
    predicted = predictor(seen[held_out]).squeeze(1)
error = (predicted - targets[held_out]).abs().mean()
guess = (targets[fitted].mean() - targets[held_out]).abs().mean()
print(f"mean error on 20 checkpoints that were held out: {error:.3f}; guessing the mean: {guess:.3f}")

# %% [markdown]
# ## Are two the same function?
#
# The last checkpoint is moved by a symmetry. Its weights are others, and `compare` finds the element of the group
# that takes one to the other. Two checkpoints that were trained apart are not the same.

# %%
from nfn_monomial import compare

a, b = (load_checkpoint(folder / f"{number}.pt") for number in (78, 79))
moved = space.sample(scale_range=(1, 100)).act(a)
for name, other in {"moved": moved, "another": b}.items():
    comparison = compare(space, a, other, module=classifier(), inputs=images[test])
    print(f"{name}: the same function: {comparison.same_function}")

# %% [markdown]
# ## Who is related to whom?
#
# Four files lie in a folder of their own: two networks that were trained apart, and of the first one a copy that was
# pruned and one that was moved. `compare` draws their tree, and says by p-values how surprising their likeness is:
# what was pruned has its neurons where its parent has them, and networks that were trained apart have not
# ([how surprising is it?](../families.md#how-surprising-is-it)).

# %%
(folder / "family").mkdir()
pruned = {name: t * (t.abs() > t.abs().median()) for name, t in a.items()}
for name, state in {"first": a, "first-pruned": pruned, "first-moved": moved, "second": b}.items():
    torch.save(dict(state), folder / "family" / f"{name}.pth.tar")
run("compare family --net net.py:classifier --out results/family")

# %% [markdown]
# ## Merge them
#
# Halfway between two networks that were trained apart lies little of use: neuron 3 of one has nothing to do with
# neuron 3 of the other. `align` moves the second next to the first, without changing its function, and then the mean
# makes sense. The merged network that is written is the best of the table.

# %%
run(
    "align family/first.pth.tar family/second.pth.tar --net net.py:classifier --data net.py:test_set --merge 0.5 "
    "--out results/merged"
)

# %% [markdown]
# The same in Python:

# %%
from nfn_monomial import align


def with_weights(state):
    net = classifier()
    net.load_state_dict(state)
    return net


aligned = align(space, a, b).aligned
means = {
    "as they are": {name: (a[name] + b[name]) / 2 for name in a},
    "aligned": {name: (a[name] + aligned[name]) / 2 for name in a},
}
print(f"the two: {accuracy(with_weights(a)):.2f} and {accuracy(with_weights(b)):.2f}")
print(f"b, moved next to a: {accuracy(with_weights(aligned)):.2f}")
for name, mean in means.items():
    print(f"their mean, {name}: {accuracy(with_weights(mean)):.2f}")

# %% [markdown]
# All commands, with their tables and figures: [your own networks](../own-networks.md).
