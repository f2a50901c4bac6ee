"""Networks of other kinds: tied and low-rank weights, mixtures, sets and graphs, flows, several inputs and outputs."""

import torch
import torch.nn.functional as F
from networks.zoo import Items, Network, gaussian, tokens
from torch import Tensor, nn


class TiedAutoencoder(nn.Module):
    """The decoder is the encoder transposed: a scale would have to be its own inverse, a sign is."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.zeros(5, 3)), nn.Parameter(torch.zeros(4, 5))
        self.b1, self.b2, self.c1, self.c2 = (nn.Parameter(torch.zeros(n)) for n in (5, 4, 5, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(F.linear(torch.tanh(F.linear(x, self.w1, self.b1)), self.w2, self.b2))
        return F.linear(torch.tanh(F.linear(h, self.w2.t(), self.c1)), self.w1.t(), self.c2)


class TiedReLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.bias = nn.Linear(3, 5), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.encoder(x)) @ self.encoder.weight + self.bias


class Autoencoder(nn.Module):
    """Strided convolutions down, transposed ones up."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4, 5))
        self.decoder = nn.Sequential(
            nn.Linear(5, 6 * 4), nn.ReLU(), nn.Unflatten(1, (6, 2, 2)), nn.ConvTranspose2d(6, 1, 3)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        return self.decoder(z), z.pow(2).sum(1)


class LoRALinear(nn.Module):
    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.lora_a, self.lora_b = nn.Parameter(torch.zeros(rank, inputs)), nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.lora_a.T @ self.lora_b.T) * (16 / 3)


class DenseMixture(nn.Module):
    """Experts stacked in one tensor, all of them run, weighted by a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(2, 3)
        self.up, self.up_bias = nn.Parameter(torch.zeros(3, 4, 2)), nn.Parameter(torch.zeros(3, 4))
        self.down, self.down_bias = nn.Parameter(torch.zeros(3, 5, 4)), nn.Parameter(torch.zeros(3, 5))
        self.head = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        gates = F.softmax(self.router(x), dim=-1)
        hidden = F.relu(torch.einsum("bi,ehi->beh", x, self.up) + self.up_bias)
        outputs = torch.einsum("beh,eoh->beo", hidden, self.down) + self.down_bias
        return self.head(torch.einsum("be,beo->bo", gates, outputs))


class RankedMixture(DenseMixture):
    """The same, their weights told apart by their places: inside of each expert that stays hidden neurons move."""

    def forward(self, x: Tensor) -> Tensor:
        gates = F.softmax(self.router(x), dim=-1) * torch.tensor([1.0, 0.5, 0.2], dtype=x.dtype)
        hidden = F.relu(torch.baddbmm(self.up_bias[:, None], x.expand(3, -1, -1), self.up.mT))
        outputs = torch.baddbmm(self.down_bias[:, None], hidden, self.down.mT)
        return self.head((gates.T[:, :, None] * outputs).sum(0))


class OfInputs(nn.Module):
    """Convolutions in groups of inputs, which stay where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(6, 8, 1, groups=2), nn.Conv1d(8, 10, 3, groups=2)
        self.out = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.second(F.relu(self.first(x)))).mean(2))


class ListMixture(nn.Module):
    """Experts as modules of their own: each has its nodes, and the router's rows stay where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(2, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(2, n), nn.Tanh(), nn.Linear(n, 3)) for n in (4, 5))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        return torch.stack([expert(x) for expert in self.experts], dim=-1).mul(weights.unsqueeze(1)).sum(-1)


class Coupling(nn.Module):
    """Two affine couplings; the log-determinant is an output too."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(2, n), nn.Tanh(), nn.Linear(n, 4)) for n in (5, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(x.shape[0], dtype=x.dtype)
        for net in self.nets:
            a, b = x.chunk(2, dim=1)
            s, t = net(a).chunk(2, dim=1)
            x = torch.cat([b * torch.exp(torch.tanh(s)) + t, a], dim=1)
            total = total + torch.tanh(s).sum(1)
        return x, total


class DeepSets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 5))
        self.rho = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.rho(self.phi(x).sum(dim=1))


class DenseGCN(nn.Module):
    """Weights as (inputs, outputs), the adjacency normalised by degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.zeros(2, 5)), nn.Parameter(torch.zeros(5, 4))
        self.b1, self.head = nn.Parameter(torch.zeros(5)), nn.Linear(4, 3)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        a = adjacency.abs() + torch.eye(adjacency.shape[-1], dtype=x.dtype)
        a = a / a.sum(-1, keepdim=True)
        h = torch.relu(torch.matmul(a, torch.matmul(x, self.w1)) + self.b1)
        return self.head(torch.relu(a @ h @ self.w2).amax(dim=1))


class GraphAttention(nn.Module):
    """One head of GAT: a source and a target vector score the pairs of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.source, self.target = nn.Linear(2, 5, bias=False), nn.Linear(5, 1), nn.Linear(5, 1, bias=False)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.w(x)
        scores = F.leaky_relu(self.source(h) + self.target(h).transpose(1, 2), 0.2)
        return self.head(F.elu(torch.softmax(scores, dim=-1) @ h))


class Bilinear(nn.Module):
    """nn.Bilinear of two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.both, self.out = (
            nn.Linear(2, 4),
            nn.Linear(3, 5),
            nn.Bilinear(4, 5, 6),
            nn.Linear(6, 2),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.out(F.relu(self.both(F.relu(self.left(x)), torch.tanh(self.right(y)))))


class ManyInsAndOuts(nn.Module):
    """Two encoders into one trunk, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.vector, self.trunk = nn.Conv2d(1, 4, 2), nn.Linear(3, 5), nn.Linear(9, 6)
        self.policy, self.value = nn.Linear(6, 2), nn.Linear(6, 1)

    def forward(self, image: Tensor, vector: Tensor) -> dict[str, Tensor]:
        a, b = self.image(image).relu().amax((2, 3)), self.vector(vector).tanh()
        h = F.leaky_relu(self.trunk(torch.hstack([a, b])))
        return {"policy": F.log_softmax(self.policy(h), -1), "value": self.value(h).squeeze(-1)}


class TextClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.fc, self.out = nn.Embedding(7, 4), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(F.relu(self.fc(self.embedding(ids).mean(dim=1))))


class TextCNN(nn.Module):
    """Convolutions of several widths over embeddings, their maxima side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.convs = nn.ModuleList(nn.Conv1d(4, n, k) for n, k in ((5, 2), (6, 3)))
        self.fc = nn.Linear(11, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).permute(0, 2, 1)
        return self.fc(torch.cat([F.relu(conv(x)).max(dim=2)[0] for conv in self.convs], dim=1))


class Siamese(nn.Module):
    """One encoder for two inputs, compared by distance and by product."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))
        self.out = nn.Linear(10, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = self.encoder(x), self.encoder(y)
        return self.out(torch.cat([torch.abs(a - b), a * b], dim=-1))


def lora() -> nn.Module:
    return nn.Sequential(LoRALinear(2, 5, 3), nn.ReLU(), LoRALinear(5, 4, 2), nn.ReLU(), nn.Linear(4, 3))


NETWORKS = [
    Network("autoencoder_tied", TiedAutoencoder, gaussian((12, 3)), {"a": Items(5, 0, 1), "b": Items(4, 0, 1)}),
    Network("autoencoder_tied_relu", TiedReLU, gaussian((12, 3)), {"a": Items(5)}),
    Network(
        "autoencoder_convolutional",
        Autoencoder,
        gaussian((8, 1, 5, 5)),
        {"a": Items(4, 1), "z": Items(5, 0, 1), "b": Items(6, 1)},
        {"encoder.3.weight": "z a*4", "decoder.0.weight": "b*4 z", "decoder.0.bias": "b*4"},
    ),
    Network(
        "lora",
        lora,
        gaussian((12, 2)),
        {"h": Items(5, 1), "g": Items(4, 1), "r": Items(3, 1, 1), "s": Items(2, 1, 1)},
        {"0.base.weight": "h 2", "0.lora_a": "r 2", "4.weight": "3 g", "4.bias": "3"},
        note="of the general linear group of the rank, what is diagonal",
    ),
    Network(
        "ranked_mixture",
        RankedMixture,
        gaussian((8, 2)),
        {"E": Items(3, still=True), "h": Items(4, 1, 0, "E"), "o": Items(5, 1, 1)},
        {
            "up": "E h 2",
            "up_bias": "E h",
            "down": "E o h",
            "down_bias": "E o",
            "router.weight": "E 2",
            "router.bias": "E",
        },
    ),
    Network(
        "grouped_inputs",
        OfInputs,
        gaussian((8, 6, 4)),
        {"G": Items(2, still=True), "a": Items(4, 1, 0, "G"), "b": Items(5, 1, 0, "G")},
        {
            "first.weight": "G*a 3 1",
            "first.bias": "G*a",
            "second.weight": "G*b a 3",
            "second.bias": "G*b",
            "out.weight": "3 G*b",
        },
    ),
    Network(
        "mixture_of_experts",
        DenseMixture,
        gaussian((16, 2)),
        {"E": Items(3), "h": Items(4, 1, 0, "E"), "e": Items(5, 1, 1)},
        {
            "router.weight": "E 2",
            "router.bias": "E",
            "up": "E h 2",
            "up_bias": "E h",
            "down": "E e h",
            "down_bias": "E e",
        },
    ),
    Network("mixture_of_modules", ListMixture, gaussian((12, 2)), {"a": Items(4, 0, 1), "b": Items(5, 0, 1)}),
    Network(
        "coupling_flow",
        Coupling,
        gaussian((12, 4)),
        {"a": Items(5, 0, 1), "b": Items(6, 0, 1)},
    ),
    Network("deep_sets", DeepSets, gaussian((8, 4, 2)), {"a": Items(4, 1), "b": Items(5, 1, 1), "c": Items(6, 1)}),
    Network(
        "gcn",
        DenseGCN,
        gaussian((8, 4, 2), (8, 4, 4)),
        {"a": Items(5, 1), "b": Items(4, 1)},
    ),
    Network("graph_attention", GraphAttention, gaussian((8, 4, 2)), {"a": Items(5)}),
    Network(
        "bilinear",
        Bilinear,
        gaussian((12, 2), (12, 3)),
        {"a": Items(4, 1), "b": Items(5, 0, 1), "c": Items(6, 1)},
        {"both.weight": "c a b"},
    ),
    Network(
        "inputs_and_outputs",
        ManyInsAndOuts,
        gaussian((8, 1, 4, 4), (8, 3)),
        {"a": Items(4, 1), "b": Items(5, 0, 1), "c": Items(6, 1)},
        {"trunk.weight": "c a+b"},
    ),
    Network("text_classifier", TextClassifier, tokens(7, (12, 5)), {"e": Items(4, 1, 1), "h": Items(5, 1)}),
    Network(
        "text_cnn",
        TextCNN,
        tokens(7, (12, 5)),
        {"e": Items(4, 1, 1), "a": Items(5, 1), "b": Items(6, 1)},
        {"fc.weight": "2 a+b"},
    ),
    Network(
        "siamese", Siamese, gaussian((12, 3), (12, 3)), {"a": Items(4, 1), "b": Items(5, 1, 1)}, {"out.weight": "2 b+b"}
    ),
]
