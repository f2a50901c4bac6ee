# %% [markdown]
# # Low-rank adapters
#
# A fine-tune is often kept as two thin matrices for each layer, whose product is added to the layer of a base network
# (LoRA). Any invertible matrix fits between the two: the same fine-tune has many pairs of them. Here, adapters are
# compared, and a model tells from their weights what they were trained on, whatever their basis.
#
# ## A base and 120 adapters
#
# The base knows ten patterns of 64 pixels. Each adapter makes it know them in one of four other forms: mirrored, dark
# on light, shifted, or with other names.

# %%
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

torch.manual_seed(0)
RANK, STEPS = 3, 60
centres = torch.randn(10, 64)
labels = torch.randint(10, (600,))
images = centres[labels] + 2.0 * torch.randn(600, 64)
forms = {
    "mirrored": (images.flip(1), labels),
    "negative": (-images, labels),
    "shifted": (images.roll(20, 1), labels),
    "renamed": (images, (labels + 1) % 10),
}


class Adapted(nn.Linear):
    """A linear layer with an adapter."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.A = nn.Parameter(torch.randn(RANK, inputs) / inputs**0.5)
        self.B = nn.Parameter(torch.randn(outputs, RANK) / 10)

    def forward(self, x):
        return super().forward(x) + x @ self.A.T @ self.B.T


def network():
    return nn.Sequential(Adapted(64, 24), nn.ReLU(), Adapted(24, 10))


base = network()
nn.init.zeros_(base[0].B), nn.init.zeros_(base[2].B)
parameters = [parameter for name, parameter in base.named_parameters() if name[-1] not in "AB"]
optimizer = torch.optim.Adam(parameters, 0.005)
for _ in range(100):
    optimizer.zero_grad()
    nn.functional.cross_entropy(base(images), labels).backward()
    optimizer.step()
frozen = {name: tensor.detach() for name, tensor in base.state_dict().items() if name[-1] not in "AB"}


def loss(adapter, x, y):
    return nn.functional.cross_entropy(functional_call(base, {**frozen, **adapter}, x), y)


adapters, _ = stack_module_state([network() for _ in range(120)])
adapters = {name: tensor.detach() for name, tensor in adapters.items() if name[-1] in "AB"}
trained_on = torch.arange(120) % 4
x = torch.stack([x for x, _ in forms.values()])[trained_on]
y = torch.stack([y for _, y in forms.values()])[trained_on]
for _ in range(STEPS):
    rows = torch.randint(600, (120, 64))
    batch = x.gather(1, rows[..., None].expand(-1, -1, 64)), y.gather(1, rows)
    for name, gradient in vmap(grad(loss))(adapters, *batch).items():
        adapters[name] = adapters[name] - 0.1 * gradient
print(f"each of {len(trained_on)} adapters has {sum(t[0].numel() for t in adapters.values())} numbers")

# %% [markdown]
# ## What leaves an adapter's function as it is
#
# `normal_form` derives it from the network and an example of its inputs. Parameters that need no gradient are frozen:
# the base belongs to the architecture.

# %%
from nfn_monomial import normal_form

for name, parameter in base.named_parameters():
    parameter.requires_grad_(name in adapters)
base.load_state_dict(frozen, strict=False)
form = normal_form(base, images[:8])
print(form.explain())

# %% [markdown]
# ## The same fine-tune?
#
# An adapter in another basis has other weights. Moved back by permutations, scales and signs it still has. In normal
# form it is the same.

# %%
from nfn_monomial.fibre import compare_fibres


def numbered(number):
    return frozen | {name: tensor[number] for name, tensor in adapters.items()}


first = numbered(0)
for what, other in {"in another basis": first | form.sample(first), "another": numbered(4)}.items():
    print(f"{what}: {compare_fibres(form, first, other)}")

# %% [markdown]
# ## What was it trained on?
#
# One model reads adapters as they are, one their normal forms: both respect permutations, scales and signs, as all
# layers here do. Half of the adapters are held out, and asked about once more in bases drawn at random. There the first
# model has other answers, if good ones: each adapter has an answer for each basis. The second has one for each adapter.

# %%
from nfn_monomial import MonomialNFN

networks = {name: tensor.unsqueeze(1) for name, tensor in adapters.items()}
order = torch.randperm(120)
fitted, held_out = order[:60], order[60:]


def part(networks, rows):
    return {name: tensor[rows] for name, tensor in networks.items()}


tests = {
    "as they are": part(networks, held_out),
    "in other bases": form.sample(part(networks, held_out)),
}
readers = {"raw": (form.whole, lambda networks: networks), "normal form": (form.space, form)}
for what, (space, read) in readers.items():
    model = MonomialNFN(space, channels=[8, 8], out_features=4)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    features = space.pack(read(part(networks, fitted)))
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features), trained_on[fitted]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        answers = {test: model(space.pack(read(networks))) for test, networks in tests.items()}
    for test, logits in answers.items():
        right = logits.argmax(1) == trained_on[held_out]
        print(f"{what}, {test}: {right.float().mean():.2f} are right")
    first, second = answers.values()
    print(f"{what}: answers change by {(second - first).norm() / first.norm():.1g}")

# %% [markdown]
# What else leaves a function as it is, and where the derivation stops: [any
# network](../any-network.md#what-else-leaves-a-function-as-it-is). The same with 1,000 adapters of a network that knows
# digits is among the [results](../results.md).
