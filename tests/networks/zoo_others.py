"""Networks of other kinds: tied and low-rank weights, mixtures, sets and graphs, flows, several inputs and outputs."""

import torch
import torch.nn.functional as F
from networks.zoo import Items, gaussian, group, net, tokens, zeros
from torch import Tensor, nn


@group({"a": Items(5, 0, 1), "b": Items(4, 0, 1)})
@net(gaussian((12, 3)), w1=zeros(5, 3), w2=zeros(4, 5), b1=zeros(5), b2=zeros(4), c1=zeros(5), c2=zeros(3))
def autoencoder_tied(m, x):
    """The decoder is the encoder transposed: a scale would have to be its own inverse, a sign is."""
    h = torch.tanh(F.linear(torch.tanh(F.linear(x, m.w1, m.b1)), m.w2, m.b2))
    return F.linear(torch.tanh(F.linear(h, m.w2.t(), m.c1)), m.w1.t(), m.c2)


@group({"a": Items(5)})
@net(gaussian((12, 3)), encoder=nn.Linear(3, 5), bias=zeros(3))
def autoencoder_tied_relu(m, x):
    return F.relu(m.encoder(x)) @ m.encoder.weight + m.bias


@group({"a": Items(4, 1), "z": Items(5, 0, 1), "b": Items(6, 1)}, {"encoder.3": "z a*4", "decoder.0": "b*4 z"})
@net(
    gaussian((8, 1, 5, 5)),
    encoder=nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4, 5)),
    decoder=nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Unflatten(1, (6, 2, 2)), nn.ConvTranspose2d(6, 1, 3)),
)
def autoencoder_convolutional(m, x):
    """Strided convolutions down, transposed ones up."""
    z = m.encoder(x)
    return m.decoder(z), z.pow(2).sum(1)


class LoRALinear(nn.Module):
    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base, self.lora_a, self.lora_b = nn.Linear(inputs, outputs), zeros(rank, inputs), zeros(outputs, rank)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.lora_a.T @ self.lora_b.T) * (16 / 3)


LORA = nn.Sequential(LoRALinear(2, 5, 3), nn.ReLU(), LoRALinear(5, 4, 2), nn.ReLU(), nn.Linear(4, 3))
group(
    {"h": Items(5, 1), "g": Items(4, 1), "r": Items(3, 1, 1), "s": Items(2, 1, 1)},
    {"0.base": "h 2", "0.lora_a": "r 2", "4": "3 g"},
    note="of the general linear group of the rank, what is diagonal",
)(("lora", LORA, gaussian((12, 2))))


def experts():
    """Experts stacked in one tensor."""
    return {
        "router": nn.Linear(2, 3), "up": zeros(3, 4, 2), "up_bias": zeros(3, 4), "down": zeros(3, 5, 4),
        "down_bias": zeros(3, 5), "head": nn.Linear(5, 6),
    }  # fmt: skip


DIMS = {"router": "E 2", "up": "E h 2", "up_bias": "E h", "down": "E e h", "down_bias": "E e"}
HIDDEN = {"h": Items(4, 1, 0, "E"), "e": Items(5, 1, 1)}


@group({"E": Items(3), **HIDDEN}, DIMS)
@net(gaussian((16, 2)), **experts())
def mixture_of_experts(m, x):
    """All experts run, weighted by a softmax."""
    gates = F.softmax(m.router(x), dim=-1)
    hidden = F.relu(torch.einsum("bi,ehi->beh", x, m.up) + m.up_bias)
    outputs = torch.einsum("beh,eoh->beo", hidden, m.down) + m.down_bias
    return m.head(torch.einsum("be,beo->bo", gates, outputs))


@group({"E": Items(3, still=True), **HIDDEN}, DIMS)
@net(gaussian((8, 2)), **experts())
def ranked_mixture(m, x):
    """The same, their weights told apart by their places: inside of each expert that stays hidden neurons move."""
    gates = F.softmax(m.router(x), dim=-1) * torch.tensor([1.0, 0.5, 0.2], dtype=x.dtype)
    hidden = F.relu(torch.baddbmm(m.up_bias[:, None], x.expand(3, -1, -1), m.up.mT))
    outputs = torch.baddbmm(m.down_bias[:, None], hidden, m.down.mT)
    return m.head((gates.T[:, :, None] * outputs).sum(0))


@group(
    {"G": Items(2, still=True), "a": Items(4, 1, 0, "G"), "b": Items(5, 1, 0, "G")},
    {"first": "G*a 3", "second": "G*b a", "out": "3 G*b"},
)
@net(
    gaussian((8, 6, 4)),
    first=nn.Conv1d(6, 8, 1, groups=2), second=nn.Conv1d(8, 10, 3, groups=2), out=nn.Linear(10, 3),
)  # fmt: skip
def grouped_inputs(m, x):
    """Convolutions in groups of inputs, which stay where they are."""
    return m.out(F.relu(m.second(F.relu(m.first(x)))).mean(2))


EXPERTS = nn.ModuleList(nn.Sequential(nn.Linear(2, n), nn.Tanh(), nn.Linear(n, 3)) for n in (4, 5))


@group({"a": Items(4, 0, 1), "b": Items(5, 0, 1)})
@net(gaussian((12, 2)), gate=nn.Linear(2, 2), experts=EXPERTS)
def mixture_of_modules(m, x):
    """Experts as modules of their own: each has its nodes, and the router's rows stay where they are."""
    weights = m.gate(x).softmax(-1)
    return torch.stack([expert(x) for expert in m.experts], dim=-1).mul(weights.unsqueeze(1)).sum(-1)


COUPLINGS = nn.ModuleList(nn.Sequential(nn.Linear(2, n), nn.Tanh(), nn.Linear(n, 4)) for n in (5, 6))


@group({"a": Items(5, 0, 1), "b": Items(6, 0, 1)})
@net(gaussian((12, 4)), nets=COUPLINGS)
def coupling_flow(m, x):
    """Two affine couplings; the log-determinant is an output too."""
    total = torch.zeros(x.shape[0], dtype=x.dtype)
    for coupling in m.nets:
        a, b = x.chunk(2, dim=1)
        s, t = coupling(a).chunk(2, dim=1)
        x = torch.cat([b * torch.exp(torch.tanh(s)) + t, a], dim=1)
        total = total + torch.tanh(s).sum(1)
    return x, total


@group({"a": Items(4, 1), "b": Items(5, 1, 1), "c": Items(6, 1)})
@net(
    gaussian((8, 4, 2)),
    phi=nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 5)),
    rho=nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)),
)
def deep_sets(m, x):
    return m.rho(m.phi(x).sum(dim=1))


@group({"a": Items(5, 1), "b": Items(4, 1)})
@net(gaussian((8, 4, 2), (8, 4, 4)), w1=zeros(2, 5), w2=zeros(5, 4), b1=zeros(5), head=nn.Linear(4, 3))
def gcn(m, x, adjacency):
    """Weights as (inputs, outputs), the adjacency normalised by degrees."""
    a = adjacency.abs() + torch.eye(adjacency.shape[-1], dtype=x.dtype)
    a = a / a.sum(-1, keepdim=True)
    h = torch.relu(torch.matmul(a, torch.matmul(x, m.w1)) + m.b1)
    return m.head(torch.relu(a @ h @ m.w2).amax(dim=1))


@group({"a": Items(5)})
@net(
    gaussian((8, 4, 2)),
    w=nn.Linear(2, 5, bias=False), source=nn.Linear(5, 1), target=nn.Linear(5, 1, bias=False), head=nn.Linear(5, 3),
)  # fmt: skip
def graph_attention(m, x):
    """One head of GAT: a source and a target vector score the pairs of nodes."""
    h = m.w(x)
    scores = F.leaky_relu(m.source(h) + m.target(h).transpose(1, 2), 0.2)
    return m.head(F.elu(torch.softmax(scores, dim=-1) @ h))


@group({"a": Items(4, 1), "b": Items(5, 0, 1), "c": Items(6, 1)}, {"both": "c a b"})
@net(
    gaussian((12, 2), (12, 3)),
    left=nn.Linear(2, 4), right=nn.Linear(3, 5), both=nn.Bilinear(4, 5, 6), out=nn.Linear(6, 2),
)  # fmt: skip
def bilinear(m, x, y):
    """nn.Bilinear of two hidden layers."""
    return m.out(F.relu(m.both(F.relu(m.left(x)), torch.tanh(m.right(y)))))


@group({"a": Items(4, 1), "b": Items(5, 0, 1), "c": Items(6, 1)}, {"trunk": "c a+b"})
@net(
    gaussian((8, 1, 4, 4), (8, 3)),
    image=nn.Conv2d(1, 4, 2), vector=nn.Linear(3, 5), trunk=nn.Linear(9, 6), policy=nn.Linear(6, 2),
    value=nn.Linear(6, 1),
)  # fmt: skip
def inputs_and_outputs(m, image, vector):
    """Two encoders into one trunk, two heads."""
    a, b = m.image(image).relu().amax((2, 3)), m.vector(vector).tanh()
    h = F.leaky_relu(m.trunk(torch.hstack([a, b])))
    return {"policy": F.log_softmax(m.policy(h), -1), "value": m.value(h).squeeze(-1)}


@group({"e": Items(4, 1, 1), "h": Items(5, 1)})
@net(tokens(7, (12, 5)), embedding=nn.Embedding(7, 4), fc=nn.Linear(4, 5), out=nn.Linear(5, 3))
def text_classifier(m, ids):
    return m.out(F.relu(m.fc(m.embedding(ids).mean(dim=1))))


CONVOLUTIONS = nn.ModuleList(nn.Conv1d(4, n, k) for n, k in ((5, 2), (6, 3)))


@group({"e": Items(4, 1, 1), "a": Items(5, 1), "b": Items(6, 1)}, {"fc": "2 a+b"})
@net(tokens(7, (12, 5)), embed=nn.Embedding(7, 4), convs=CONVOLUTIONS, fc=nn.Linear(11, 2))
def text_cnn(m, ids):
    """Convolutions of several widths over embeddings, their maxima side by side."""
    x = m.embed(ids).permute(0, 2, 1)
    return m.fc(torch.cat([F.relu(conv(x)).max(dim=2)[0] for conv in m.convs], dim=1))


@group({"a": Items(4, 1), "b": Items(5, 1, 1)}, {"out": "2 b+b"})
@net(
    gaussian((12, 3), (12, 3)),
    encoder=nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5)), out=nn.Linear(10, 2),
)  # fmt: skip
def siamese(m, x, y):
    """One encoder for two inputs, compared by distance and by product."""
    a, b = m.encoder(x), m.encoder(y)
    return m.out(torch.cat([torch.abs(a - b), a * b], dim=-1))
