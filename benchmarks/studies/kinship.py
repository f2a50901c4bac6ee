"""P-values of kinship: uniform for networks that are trained apart, and small for relatives?

Networks of one kind learn the same digits, each from initial weights of its own: two of them are a pair, no network is
in two pairs. Beside p-values stands how alike activations are (`partnership`), which knows no null but these pairs: a
child is told by it where it is nearer to its parent than all networks that were trained apart are to one another.

**Children.** *Fine-tuned*: trained on with mirrored digits. *Pruned*: the smallest weights of each tensor are 0.
*3 bits*: each tensor of weights is rounded to 7 values. *Low rank*: a quarter of the singular values of each weight is
left. *Merged*: the mean of a network and another one that was moved next to it, against either parent. *Same first
weights*: both trained from the same initial weights. *Distilled*: trained from initial weights of its own on the
parent's outputs; its weights are independent of the order of the parent's neurons, so no test of weights can tell.
*Fine-tuned and moved*: permuted and scaled afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from nfn_monomial import align
from nfn_monomial.alignment import kinship
from nfn_monomial.alignment.kinship import partnership
from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.benchmarks.data.images import Images, load_images
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.experiments.kinship import KinshipConfig
from nfn_monomial.benchmarks.make.config import Hyperparameters
from nfn_monomial.benchmarks.make.training import Optimizers, train_group
from nfn_monomial.benchmarks.settings.register import Said, Study
from nfn_monomial.benchmarks.train.runs import RunStore, environment
from nfn_monomial.read import ProbeFeatures
from nfn_monomial.tools.predictors.architectures import Architecture, PlainCNN
from nfn_monomial.tools.report import Report, Table, look, panels
from nfn_monomial.tools.store import Store

__all__ = ["architecture", "children", "kinship_report", "measured"]

GROUP = 100  # networks that train together
BATCH = 32
PROBED = 256  # images at which activations are compared
LEVELS = (0.001, 0.01, 0.05, 0.1, 0.5)
SMALL = 1e-3
APART = "trained apart"

Networks = dict[str, Tensor]


def architecture(kind: str, images: Images) -> Architecture:
    """The small classifier of that name."""
    size, classes = images.size, images.classes
    if kind == "mlp":  # the first layer is a convolution whose kernel is the image
        return PlainCNN((1, 32), (size,), (1,), (0,), (32, classes), ("relu", "relu"))
    if kind == "residual":
        return ResidualCNN(1, (12,), (1,), (8,), True, ("relu",), classes, 2)
    return Transformer(1, size, size // 2, 12, (3,), 4, (16,), ("gelu",), classes)


def _trained(config: KinshipConfig, made: Architecture, images: Images, store: Store, label: str) -> Iterator[Networks]:
    """Networks, a group at a time; with the label ``first`` their initial weights, others than those of ``apart``."""
    count, rate = 2 * config.pairs, config.learning_rate
    if label == "first":
        count, rate = config.parents, 1e-12
    recipe = Hyperparameters(
        "adam", rate, 1e-5, 0.0, 1.0, config.epochs if label == APART else 1, "he_normal", 0.1, "zeros", 0
    )
    for start in range(0, count, GROUP):
        numbers = range(start, min(count, start + GROUP))
        drawn = [replace(recipe, random_seed=derive_seed(config.seed, label, i)) for i in numbers]
        yield store.piece(f"{label.split()[-1]}-{start}", partial(_group, drawn, made, images))[1]


def _group(drawn: Sequence[Hyperparameters], made: Architecture, images: Images) -> tuple[None, Networks]:
    return None, train_group(drawn, images, made)[0]


def _joined(parts: Iterator[Networks]) -> Networks:
    found = list(parts)
    return {name: torch.cat([part[name] for part in found]) for name in found[0]}


def _logits(made: Architecture, networks: Mapping[str, Tensor], x: Tensor, each: int | None) -> Tensor:
    """``(n, images, classes)`` of images for all networks (None), or for each its own (0)."""
    module = made.sized().eval()

    def run(own: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(module, own, (x,))
        return out

    own = {made.names[name]: t for name, t in networks.items()}
    out: Tensor = torch.func.vmap(run, in_dims=(0, each))(own, x)
    return out


def tune(
    made: Architecture, networks: Networks, x: Tensor, targets: Tensor, config: KinshipConfig, seed: int
) -> Networks:
    """Networks trained on, side by side, with images ``(N, 1, H, W)`` and targets ``(n or 1, N, classes)``; statistics
    of batch norms stay as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    buffers = {name for name, _ in made.sized().named_buffers()}
    learned = {name: t for name, t in networks.items() if made.names[name] not in buffers}
    weights = torch.cat([t.flatten(1) for t in learned.values()], 1)
    n = len(weights)
    optimizers = Optimizers(weights, ["adam"] * n, [config.learning_rate / 3] * n)
    lengths = [t[0].numel() for t in learned.values()]

    def whole(rows: Tensor) -> Networks:
        parts = zip(learned.items(), torch.split(rows, lengths, 1), strict=True)
        return networks | {name: part.reshape(t.shape) for (name, t), part in parts}

    for step in range(config.steps):
        chosen = torch.randint(len(x), (n, BATCH), generator=generator)
        leaf = weights.detach().requires_grad_()
        wanted = targets.expand(n, -1, -1)[torch.arange(n)[:, None], chosen]
        logits = _logits(made, whole(leaf), x[chosen], 0)
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(0, 1), reduction="sum") / BATCH
        optimizers.step(torch.autograd.grad(loss, leaf)[0], step + 1)
    return {name: t.clone() for name, t in whole(weights).items()}


def _pruned(x: Tensor, share: float) -> Tensor:
    bound = x.abs().flatten(1).quantile(share, 1).view(-1, *[1] * (x.ndim - 1))
    return x * (x.abs() > bound)


def _rounded(x: Tensor) -> Tensor:
    step = x.abs().flatten(1).amax(1).view(-1, *[1] * (x.ndim - 1)) / 3
    return (x / step).round() * step


def _low_rank(x: Tensor) -> Tensor:
    u, s, v = torch.linalg.svd(x.flatten(2), full_matrices=False)
    s[:, max(1, s.shape[1] // 4) :] = 0
    left: Tensor = (u * s[:, None] @ v).view_as(x)
    return left


def children(
    made: Architecture, parents: Networks, first: Networks, images: Images, config: KinshipConfig
) -> dict[str, tuple[Networks, Networks]]:
    """Name -> networks and their children, in pairs."""
    x, one_hot = images.x[images.train], F.one_hot(images.y[images.train], images.classes).float()[None]
    space, matrices = made.space, [name for name, t in parents.items() if t.ndim > 2]
    seeds = [derive_seed(config.seed, "tuning", i) for i in range(4)]

    def changed(change: Any) -> Networks:
        return {name: change(t) if name in matrices else t for name, t in parents.items()}

    tuned = tune(made, parents, x.flip(3), one_hot, config, seeds[0])
    apart = [tune(made, first, x, one_hot, config, seed) for seed in seeds[1:3]]
    with torch.no_grad():
        taught = _logits(made, parents, x, None).softmax(-1)
    generator = torch.Generator().manual_seed(config.seed)
    moved = space.sample(config.parents, scale_range=(1, 10), generator=generator)
    others = {name: t.roll(1, 0) for name, t in parents.items()}
    pairs = [[{n: t[i] for n, t in networks.items()} for networks in (parents, others)] for i in range(config.parents)]
    near = [align(space, *pair).aligned for pair in pairs]
    merged = {name: (t + torch.stack([other[name] for other in near])) / 2 for name, t in parents.items()}
    return {
        "fine-tuned": (parents, tuned),
        "pruned, 50 %": (parents, changed(lambda x: _pruned(x, 0.5))),
        "pruned, 90 %": (parents, changed(lambda x: _pruned(x, 0.9))),
        "3 bits": (parents, changed(_rounded)),
        "low rank": (parents, changed(_low_rank)),
        "merged, first parent": (parents, merged),
        "merged, second parent": (others, merged),
        "same first weights": (apart[0], apart[1]),
        "distilled": (parents, tune(made, first, x, taught, config, seeds[3])),
        "fine-tuned and moved": (
            parents, {name: t[:, 0] for name, t in moved.act({n: t[:, None] for n, t in tuned.items()}).items()},
        ),
    }  # fmt: skip


def measured(
    made: Architecture, one: Networks, other: Networks, images: Images, config: KinshipConfig
) -> dict[str, list[float]]:
    """Of pairs of networks the p-values, and how alike activations are."""
    probe = ProbeFeatures(made.module(), images.x[images.test[:PROBED]], space=made.space)
    found: dict[str, list[float]] = {"p": [], "partners": []}
    count = len(next(iter(one.values())))
    with torch.no_grad():
        for i in range(count):
            a, b = ({name: t[i] for name, t in networks.items()} for networks in (one, other))
            found["p"].append(kinship(made.space, a, b, draws=config.draws, seed=derive_seed(config.seed, i)).p_value)
            both = probe({name: torch.stack([a[name], b[name]])[:, None] for name in a}).hidden
            alike = [partnership(x[0], x[1]) for x in both.values()]
            known = [value for value in alike if value is not None]
            found["partners"].append(sum(known) / len(known))
    return found


def _run(data: None, config: KinshipConfig, store: RunStore, tell: Any) -> dict[str, Any]:
    images = load_images("digits")
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for kind in config.networks:
        made, kept = architecture(kind, images), Store(store.folder / kind, asdict(config))
        tell(Said(f"training {kind} networks"))
        networks = _joined(_trained(config, made, images, kept, APART))
        first = _joined(_trained(config, made, images, kept, "first"))
        tell(Said(f"comparing {kind} networks"))

        def apart(networks: Networks = networks, made: Architecture = made) -> tuple[Any, dict[str, Tensor]]:
            one, other = ({name: t[i::2] for name, t in networks.items()} for i in range(2))
            return measured(made, one, other, images, config), {}

        found[kind] = {APART: kept.piece("pairs", apart)[0]}

        def related(
            networks: Networks = networks, first: Networks = first, made: Architecture = made
        ) -> tuple[Any, dict[str, Tensor]]:
            parents = {name: t[: config.parents] for name, t in networks.items()}
            made_of = children(made, parents, first, images, config)
            return {name: measured(made, *pair, images, config) for name, pair in made_of.items()}, {}

        found[kind] |= kept.piece("children", related)[0]
    return found


def uniform_p(values: list[float]) -> float:
    """The p-value of the test of Kolmogorov and Smirnov that p-values are uniform."""
    from scipy.stats import kstest

    return float(kstest(values, "uniform").pvalue)


def kinship_report(found: Mapping[str, Any], config: KinshipConfig) -> Report:
    """Tables of calibration and of children, the numbers, and the figure."""
    calibration = Table(
        "Networks that were trained apart: share of p-values up to a level",
        ("networks", "pairs", *(f"{level:g}" for level in LEVELS), "uniform: p", "partners, largest"),
        tuple(
            (
                kind, f"{len(p):,}", *(f"{sum(x <= level for x in p) / len(p):.3f}" for level in LEVELS),
                f"{uniform_p(p):.2f}", f"{max(of[APART]['partners']):.2f}",
            )
            for kind, of in found.items() for p in (of[APART]["p"],)
        ),
        notes=("Uniform: the test of Kolmogorov and Smirnov. Each network is in one pair.",),
    )  # fmt: skip
    shares = {kind: _shares(of) for kind, of in found.items()}
    names = [name for name in next(iter(found.values())) if name != APART]
    relatives = Table(
        f"Children and their parents: share with p < {SMALL:g} by weights; nearer than all apart, by partners",
        ("child", *(f"{kind}, {by}" for kind in found for by in ("weights", "partners"))),
        tuple((name, *(f"{x:.3f}" for kind in found for x in shares[kind][name].values())) for name in names),
        notes=(f"{config.parents} children of each kind, {config.pairs:,} pairs that were trained apart.",),
    )
    results = {"environment": environment("cpu"), "config": asdict(config), "shares": shares, "found": dict(found)}
    return Report([calibration, relatives], results, {"kinship.png": draw_kinship(found)})


def _shares(of: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    most = max(of[APART]["partners"])
    return {
        name: {
            "weights": sum(p < SMALL for p in x["p"]) / len(x["p"]),
            "partners": sum(value > most for value in x["partners"]) / len(x["p"]),
        }
        for name, x in of.items()
        if name != APART
    }


def draw_kinship(found: Mapping[str, Any]) -> Figure:
    """P-values of networks that were trained apart against uniform ones; of children; and how alike partners are."""
    figure, (left, middle, right) = panels(1, 3, (13.5, 4.2))
    names = list(next(iter(found.values())))
    left.plot([1e-4, 1], [1e-4, 1], color="#404040", linewidth=0.8)
    for i, (kind, of) in enumerate(found.items()):
        p, style = sorted(of[APART]["p"]), look(i)
        left.plot([(j + 1) / len(p) for j in range(len(p))], p, **style | {"markersize": 2, "linewidth": 1}, label=kind)
        for ax, value in ((middle, "p"), (right, "partners")):
            middles = [sorted(of[name][value])[len(of[name][value]) // 2] for name in names]
            places = [j + 0.25 * (i - 1) for j in range(len(names))]
            ax.plot(middles, places, color=style["color"], marker=style["marker"], linestyle="none")
            ends = [(sorted(x)[len(x) // 20], sorted(x)[-1 - len(x) // 20]) for x in (of[n][value] for n in names)]
            ax.hlines(places, *zip(*ends, strict=True), color=style["color"], linewidth=1)
    left.set(xscale="log", yscale="log", xlabel="uniform", ylabel="p-values of networks trained apart")
    left.legend(frameon=False, fontsize=8)
    for ax, label in ((middle, "p-value, median and 90 %"), (right, "likeness of partners, median and 90 %")):
        ax.set_yticks(range(len(names)), names if ax is middle else [""] * len(names), fontsize=8)
        ax.invert_yaxis()
        ax.set(xlabel=label)
    middle.set(xscale="log")
    middle.axvline(SMALL, color="#404040", linewidth=0.8)
    return figure


STUDY = Study(_run, lambda found, config, store: kinship_report(found, config))
