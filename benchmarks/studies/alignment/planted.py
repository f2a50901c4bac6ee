"""Does `align` find the group element that it was moved by? Networks of several kinds, moved by random elements.

A network is moved by a random permutation, random signs, and scales whose logarithms are uniform up to a largest
scale; as it is, rounded to float32, or with every entry noised. What `align` finds is compared with the inverse of what
was planted.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nfn_monomial import GroupElement, MonomialMatrix, WeightSpace, align
from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.report.results import Report
from nfn_monomial.benchmarks.report.tables import Table
from nfn_monomial.benchmarks.settings.measurements import PlantedConfig
from nfn_monomial.benchmarks.train.runs import environment

__all__ = ["KINDS", "Recovery", "planted_element", "planted_report", "recover", "recover_planted"]

TOLERANCES = {"exact": 1e-6, "float32": 1e-5, "noised": 0.05}
"""What is done to a moved network -> by what part of its size an entry may differ from what it should be."""
PERTURBED = 0.3  # standard deviation of what is added to biases, norms and statistics of every other network


@dataclass(frozen=True)
class Recovery:
    """One run: a network of some kind moved, changed and aligned.

    Attributes:
        kind: of the network.
        change: what was done to it after it was moved.
        recovered: whether every entry was brought to where the inverse of the planted element brings it.
        output_error: largest difference of outputs from those of the network that was moved, relative to the largest.
        seconds: of processor time.
    """

    kind: str
    change: str
    recovered: bool
    output_error: float
    seconds: float


def _mlp(random: Random) -> tuple[nn.Module, Tensor]:
    act = random.choice((nn.ReLU, nn.Tanh))
    sizes = [
        random.randint(2, 10),
        *(random.randint(4, 48) for _ in range(random.randint(1, 5))),
        random.randint(1, 10),
    ]
    layers = [part for n, m in itertools.pairwise(sizes) for part in (nn.Linear(n, m), act())]
    return nn.Sequential(*layers[:-1]), torch.randn(8, sizes[0])


def _vgg(random: Random) -> tuple[nn.Module, Tensor]:
    base = random.choice((16, 32))
    layers: list[nn.Module] = []
    channels = 3
    for stage, convolutions in enumerate((1, 1, 2, 2)):
        width = min(base * 2**stage, 64)
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(channels, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(*layers), torch.randn(4, 3, 16, 16)


def _resnet18(random: Random) -> tuple[nn.Module, Tensor]:
    base = random.choice((4, 8))
    widths = (base, 2 * base, 4 * base, 8 * base)
    inner = tuple(width for width in widths for _ in range(2))
    network = ResidualCNN(3, widths, (2, 2, 2, 2), inner, normalised=True, activations=("relu",), classes=10)
    return network.module(), torch.randn(4, 3, 16, 16)


class _GPTBlock(nn.Module):
    """Causal attention and an MLP, each behind a layer norm, between an embedding and a head."""

    def __init__(self, width: int, heads: int, vocabulary: int = 24, length: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places
        batch, length, width = x.shape
        query, key, value = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        logits: Tensor = self.head(self.norm3(x))
        return logits


def _gpt_block(random: Random) -> tuple[nn.Module, Tensor]:
    return _GPTBlock(random.choice((32, 64)), 4), torch.randint(24, (2, 8))


KINDS: Mapping[str, Callable[[Random], tuple[nn.Module, Tensor]]] = {
    "MLP": _mlp,
    "VGG": _vgg,
    "ResNet-18": _resnet18,
    "GPT block": _gpt_block,
}
"""Kind -> random network and inputs."""


def planted_element(space: WeightSpace, largest: float, generator: torch.Generator) -> GroupElement:
    """A uniform permutation, uniform signs, and scales with logarithms uniform up to those of ``largest``."""
    matrices = {}
    for name, matrix in space.sample(generator=generator).matrices.items():
        scales = []
        for gauge, scale in zip(space.nodes[name].gauges, matrix.scales, strict=True):
            spread = 2 * torch.rand(scale.shape, generator=generator, dtype=scale.dtype) - 1
            scales.append(scale.sign() * (spread * math.log(largest)).exp() if gauge.scales else scale)
        matrices[name] = MonomialMatrix(scales, matrix.permutation)
    return GroupElement(space, matrices)


def _perturb(module: nn.Module, generator: torch.Generator) -> None:
    """Biases, gains and statistics that are not as initialised."""
    for name, x in (*module.named_parameters(), *module.named_buffers()):
        if x.is_floating_point() and x.ndim == 1:
            moved = x.detach() + PERTURBED * torch.randn(x.shape, generator=generator)
            x.data = moved.abs() if name.endswith("running_var") else moved


def _changed(network: Mapping[str, Tensor], change: str, noise: float, generator: torch.Generator) -> dict[str, Tensor]:
    if change == "float32":
        return {name: x.float() for name, x in network.items()}
    if change == "noised":
        drawn = {name: torch.randn(x.shape, generator=generator, dtype=x.dtype) for name, x in network.items()}
        return {name: x * (1 + noise * drawn[name]) for name, x in network.items()}
    return dict(network)


def recover(kind: str, change: str, seed: int, config: PlantedConfig, spaces: dict[str, WeightSpace]) -> Recovery:
    """One run, reproducible from its seed.

    Args:
        kind: of network, one of `KINDS`.
        change: one of `TOLERANCES`.
        seed: of the network, the element and the noise. Every other network is perturbed before.
        config: see there.
        spaces: those of networks seen before, by their structure, which takes longer to trace than to align.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module, inputs = KINDS[kind](Random(seed))
    module.eval()
    if seed % 2:
        _perturb(module, generator)
    structure = f"{module} {[tuple(x.shape) for x in module.state_dict().values()]}"
    if structure not in spaces:
        spaces[structure] = WeightSpace.from_module(module, inputs)
    space = spaces[structure]
    module.double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    a = {name: x.detach() for name, x in module.state_dict().items() if name in space.parameters}
    planted = planted_element(space, config.largest, generator)
    b = _changed(planted.act(a), change, config.noise, generator)
    start = time.process_time()
    found = align(space, a, b)
    seconds = time.process_time() - start
    precise = {name: x.double() for name, x in b.items()}
    moved, expected = found.element.act(precise), planted.inverse().act(precise)
    allowed = TOLERANCES[change]
    same = all(bool(((moved[n] - expected[n]).abs() <= allowed * expected[n].abs()).all()) for n in expected)
    with torch.no_grad():
        before = module(inputs)
        after = torch.func.functional_call(module, moved, (inputs,))
    error = float((after - before).abs().max() / before.abs().max())
    # Where neurons are equal, another element may do as well.
    recovered = same or (change == "exact" and error <= allowed and found.distance <= allowed * _norm(a))
    return Recovery(kind, change, recovered and (change != "exact" or error <= allowed), error, seconds)


def _norm(network: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(x.square().sum()) for x in network.values()))


def recover_planted(
    config: PlantedConfig, progress: Callable[[int, int], object] = lambda done, total: None
) -> list[Recovery]:
    """All runs.

    Args:
        config: see there.
        progress: called after every run with the numbers of runs that are done and that there are in all.
    """
    runs = [
        (kind, change, derive_seed(config.seed, kind, number))
        for kind in KINDS
        for change in TOLERANCES
        for number in range(config.runs if change == "exact" else config.changed_runs)
    ]
    found: list[Recovery] = []
    spaces: dict[str, WeightSpace] = {}
    for done, (kind, change, seed) in enumerate(runs, 1):
        found.append(recover(kind, change, seed, config, spaces))
        progress(done, len(runs))
    return found


def planted_report(recoveries: Sequence[Recovery], config: PlantedConfig) -> Report:
    """A line for every kind of network and change."""
    groups: dict[tuple[str, str], list[Recovery]] = {}
    for recovery in recoveries:
        groups.setdefault((recovery.kind, recovery.change), []).append(recovery)
    rows = [
        {
            "kind": kind,
            "change": change,
            "runs": len(group),
            "recovered": sum(r.recovered for r in group),
            "output_error": max(r.output_error for r in group),
            "seconds": sum(r.seconds for r in group) / len(group),
        }
        for (kind, change), group in groups.items()
    ]
    table = Table(
        "Planted group elements found",
        ("network", "after the move", "runs", "recovered", "largest error of outputs", "seconds"),
        tuple(
            (
                str(row["kind"]),
                str(row["change"]),
                f"{row['runs']:,}",
                f"{row['recovered']:,}",
                f"{row['output_error']:.0e}",
                f"{row['seconds']:.2f}",
            )
            for row in rows
        ),
        text_columns=2,
        names=(0, 1),
        notes=(
            f"Random permutations, signs, and scales up to {config.largest:.0e} each way. Recovered: every entry is "
            f"brought to where the inverse of the planted element brings it, within {TOLERANCES['exact']:.0e} of its "
            f"size, {TOLERANCES['float32']:.0e} where it was rounded to float32, {TOLERANCES['noised']:.0%} with "
            f"{config.noise:.0%} of noise on every entry; where nothing was changed, outputs are the same within "
            f"{TOLERANCES['exact']:.0e}, too. Seconds: of one processor core, for each alignment.",
        ),
    )
    return Report([table], {"environment": environment("cpu"), "config": asdict(config), "rows": rows})
