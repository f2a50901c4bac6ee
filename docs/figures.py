"""The pictures of the documentation: ``python docs/figures.py`` draws them into ``docs/images``.

The picture of the rooms is made from the contract on imports in ``pyproject.toml``.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.text import Text
from torch import Tensor, nn

from nfn_monomial import Axis, WeightSpace, normal_form
from nfn_monomial.space import GroupElement, MonomialMatrix

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
BLUE, RED, GREEN, GREY = "#2166ac", "#b2182b", "#1a7f37", "#777777"
NODES = {"x": GREY, "h1": "#4477aa", "h2": "#228833", "y": GREY}
NEURONS = ("#4477aa", "#ee6677", "#228833", "#aa3377")  # a colour for each hidden neuron, kept when it moves

# -- the same function in other weights -----------------------------------------------------------------------------


def example() -> tuple[dict[str, Tensor], GroupElement]:
    """A ReLU network 1-4-1 and an element of its group that everyone can follow: scales 3, 1/2, 1, 2, and an order."""
    space = WeightSpace.mlp([1, 4, 1], "relu")
    network = {
        "weight.0": [[1.0], [-1.2], [1.5], [-0.8]],
        "bias.0": [0.6, 0.4, -0.9, -0.5],
        "weight.1": [[1.1, 0.9, -1.6, 1.4]],
        "bias.1": [-0.7],
    }
    tensors = {name: torch.tensor(x, dtype=torch.float64)[None, None] for name, x in network.items()}
    fixed = MonomialMatrix.identity(1)
    hidden = MonomialMatrix(torch.tensor([3.0, 0.5, 1.0, 2.0], dtype=torch.float64), torch.tensor([2, 0, 3, 1]))
    return tensors, GroupElement(space, {"x": fixed, "h1": hidden, "y": fixed})


def answers(network: dict[str, Tensor], x: Tensor) -> Tensor:
    """Evaluates the ReLU network at the points ``x (n,)``."""
    w, b, v, c = (network[name][0, 0] for name in ("weight.0", "bias.0", "weight.1", "bias.1"))
    return (v @ (w * x + b[:, None]).relu() + c[:, None])[0]


def same_function() -> Figure:
    """Two networks and their functions."""
    network, element = example()
    moved = element.act(network)
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    above = figure.subplots(2, 2, height_ratios=(3, 2))
    names = ("a ReLU network", "scaled and permuted: other weights")
    came_from = element.matrices["h1"].act(torch.arange(4.0), 0, charge=0)
    colours = (NEURONS, [NEURONS[int(j)] for j in came_from])
    x = torch.linspace(-2, 2, 201, dtype=torch.float64)
    for i, tensors in enumerate((network, moved)):
        _draw_network(above[0, i], tensors, colours[i])
        above[0, i].set_title(names[i], fontsize=11)
        above[1, i].plot(x.numpy(), answers(tensors, x).numpy(), color=BLUE, linewidth=2)
        above[1, i].set(xlabel="input", ylabel="output" if i == 0 else "", ylim=(-1.5, 4))
        above[1, i].set_title("its function" if i == 0 else "its function: the same", fontsize=11)
    return figure


def _draw_network(axes: Axes, tensors: dict[str, Tensor], colours: Sequence[str]) -> None:
    w, b, v = (tensors[name][0, 0].flatten().tolist() for name in ("weight.0", "bias.0", "weight.1"))
    for k in range(4):
        y = 1.5 - k
        for (x0, y0), (x1, y1), value in (((0, 0), (2, y), w[k]), ((2, y), (4, 0), v[k])):
            axes.plot([x0, x1], [y0, y1], color=BLUE if value > 0 else RED, linewidth=0.6 + 1.3 * abs(value), zorder=1)
            at = 0.62 if x0 == 0 else 0.38
            axes.text(
                x0 + at * (x1 - x0), y0 + at * (y1 - y0), f"{value:g}", fontsize=9, ha="center", va="center", zorder=2,
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"},
            )  # fmt: skip
        axes.scatter([2], [y], s=420, color=colours[k], zorder=3)
        axes.text(2, y, f"{b[k]:g}", color="white", fontsize=8, ha="center", va="center", zorder=4)
    axes.scatter([0, 4], [0, 0], s=420, color=GREY, zorder=3)
    axes.set(xlim=(-0.4, 4.4), ylim=(-2, 2))
    axes.axis("off")


# -- charges ----------------------------------------------------------------------------------------------------------


def charges() -> Figure:
    """The parameters of an MLP 2-4-3-1 with the charge of every axis."""
    space = WeightSpace.mlp([2, 4, 3, 1], "relu")
    sizes = {name: node.size or 1 for name, node in space.nodes.items()}
    figure = Figure(figsize=(9.4, 3.0), layout="constrained")
    axes = figure.subplots()
    at = 0.0
    for name, dims in space.parameters.items():
        rows, *others = [axis.node for axis in dims if isinstance(axis, Axis)]
        columns = others[0] if others else None
        height, width = sizes[rows], sizes[columns] if columns else 1
        for j in range(height):
            for k in range(width):
                axes.add_patch(Rectangle((at + k, -j - 1 + height / 2), 1, 1, facecolor="#eef2f7", edgecolor="white"))
        axes.text(at + width / 2, 2.95, name, ha="center", fontsize=11, family="monospace")
        axes.plot([at - 0.12] * 2, [-height / 2, height / 2], color=NODES[rows], linewidth=5, solid_capstyle="butt")
        axes.text(at - 0.3, 0, _charge(space, rows, +1), ha="right", va="center", color=NODES[rows], fontsize=11)
        if columns:
            axes.plot(
                [at, at + width], [height / 2 + 0.12] * 2, color=NODES[columns], linewidth=5, solid_capstyle="butt"
            )
            axes.text(
                at + width / 2, height / 2 + 0.28, _charge(space, columns, -1), ha="center", va="bottom",
                color=NODES[columns], fontsize=11,
            )  # fmt: skip
        at += width + 2.0
    axes.set(xlim=(-1.6, at - 1.6), ylim=(-2.3, 3.5), aspect="equal")
    axes.axis("off")
    return figure


def _charge(space: WeightSpace, node: str, charge: int) -> str:
    return f"{node} {charge:+d}" if space.nodes[node].symmetry.permutes else node


# -- balanced partitions ----------------------------------------------------------------------------------------------

# Blocks of the axes j (charge +1) and k (-1) of a hidden weight and j', k' of the weight that is made of it.
PARTITIONS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "jj' kk'": ("W'jk = Wjk", lambda w: w),
    "jj' k k'": ("W'jk = mean over k of Wjk", lambda w: w.mean(1, keepdim=True).expand_as(w)),
    "j j' kk'": ("W'jk = mean over j of Wjk", lambda w: w.mean(0, keepdim=True).expand_as(w)),
    "j j' k k'": ("W'jk = mean of all", lambda w: w.mean().expand_as(w)),
}
GROUPS: dict[str, Callable[[int], bool]] = {
    "PERMUTATION": lambda total: True,
    "SIGN": lambda total: total % 2 == 0,
    "SCALE": lambda total: total == 0,
}


def totals(partition: str) -> list[int]:
    """Returns for every block the sum of the incoming charges minus that of the outgoing ones."""
    charges = {"j": +1, "j'": -1, "k": -1, "k'": +1}  # outgoing ones with their sign turned
    return [sum(charges[axis] for axis in re.findall("[jk]'?", block)) for block in partition.split()]


def partitions() -> Figure:
    """The four partitions of the axes of a hidden weight, in and out: their maps, and which groups leave them."""
    w = torch.tensor([[1.0, -0.4, 0.3, 0.9], [0.2, 0.8, -0.7, -0.1], [-0.9, 0.5, 0.6, -0.3]], dtype=torch.float64)
    figure = Figure(figsize=(10, 3.1))
    figure.subplots_adjust(left=0.04, right=0.99, top=0.9, bottom=0.33, wspace=0.06)
    first, *others = figure.subplots(1, 5)
    first.set_title("W, a hidden weight", fontsize=11)
    first.set_xlabel("k: h1 -1", fontsize=10, color=NODES["h1"])
    first.set_ylabel("j: h2 +1", fontsize=10, color=NODES["h2"])
    first.imshow(w.numpy(), cmap="RdBu", vmin=-1, vmax=1)
    for axes, (partition, (formula, f)) in zip(others, PARTITIONS.items(), strict=True):
        axes.imshow(f(w).numpy(), cmap="RdBu", vmin=-1, vmax=1)
        axes.set_title(
            " ".join("{" + " ".join(re.findall("[jk]'?", block)) + "}" for block in partition.split()), fontsize=11
        )
        axes.set_xlabel(formula, fontsize=9)
        for line, (group, balanced) in enumerate(GROUPS.items()):
            verdict = all(map(balanced, totals(partition)))
            axes.text(
                0.5, -0.42 - 0.18 * line, f"{group}: {'yes' if verdict else 'no'}", transform=axes.transAxes,
                ha="center", fontsize=9, color=GREEN if verdict else RED,
            )  # fmt: skip
    for axes in (first, *others):
        axes.set(xticks=[], yticks=[])
    return figure


# -- rooms ------------------------------------------------------------------------------------------------------------


def contracts() -> dict[str, list[list[str]]]:
    """Contract on the imports of the rooms of core, tools and experiments -> its layers, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        contract["name"]: [re.findall(r"\w+", layer) for layer in contract["layers"]]
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract.get("containers") in (["nfn_monomial"], ["nfn_monomial.tools"], ["nfn_monomial.benchmarks"])
    }


def rooms() -> Figure:
    """The rooms of the packages, each above all that it may import."""
    layers_by_name = contracts()
    figure = Figure(figsize=(12, 0.75 * max(map(len, layers_by_name.values())) + 0.6), layout="constrained")
    panels = figure.subplots(1, len(layers_by_name), squeeze=False)[0]
    for axes, (name, layers) in zip(panels, layers_by_name.items(), strict=True):
        for level, names in enumerate(reversed(layers)):
            width = 6 / len(names)
            for i, room in enumerate(names):
                box = FancyBboxPatch(
                    (i * width + 0.1, level + 0.2), width - 0.2, 0.6, boxstyle="round,pad=0.02", facecolor="#eef2f7",
                    edgecolor=BLUE,
                )  # fmt: skip
                axes.add_patch(box)
                axes.text((i + 0.5) * width, level + 0.5, room, ha="center", va="center", fontsize=10)
        axes.add_patch(
            FancyArrowPatch((6.4, len(layers) - 0.3), (6.4, 0.3), arrowstyle="-|>", mutation_scale=14, color=GREY)
        )
        axes.text(6.6, len(layers) / 2, "may import", rotation=270, va="center", fontsize=9, color=GREY)
        axes.set_title(name, fontsize=11)
        axes.set(xlim=(0, 7), ylim=(0, len(layers)))
        axes.axis("off")
    return figure


# -- houses ----------------------------------------------------------------------------------------------------------

HOUSES = {
    "deriving\na module -> a space": ("from_module", "verify", "trace", "report"),
    "layers\nfeatures -> features": ("adapters", "models", "nn", "read"),
    "comparing\ntwo networks -> what differs": ("fibre", "alignment"),
}
ABOVE = {"benchmarks": "the paper's experiments", "tools": "your own checkpoints: the command nfn-monomial"}


def houses() -> Figure:
    """Three houses on one ground; what stands above uses all of them."""
    core = contracts()["rooms of the core"]
    housed = {room for rooms in HOUSES.values() for room in rooms}
    ground = [room for layer in reversed(core) for room in layer if room not in housed]
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()

    def box(left: float, bottom: float, width: float, height: float, text: str, colour: str = "#eef2f7") -> None:
        style = "round,pad=0.02"
        axes.add_patch(FancyBboxPatch((left, bottom), width, height, style, facecolor=colour, edgecolor=BLUE))
        axes.text(left + width / 2, bottom + height / 2, text, ha="center", va="center", fontsize=10)

    box(0, 0, 9, 0.9, "a space is data\n" + "   ".join(ground), "#dce6f0")
    for number, (title, rooms_inside) in enumerate(HOUSES.items()):
        left = 3 * number + 0.15
        for floor, room in enumerate(reversed(rooms_inside)):
            box(left + 0.2, 1.1 + 0.6 * floor, 2.3, 0.45, room)
        top = 1.05 + 0.6 * len(rooms_inside)
        axes.plot([left, left, left + 1.35, left + 2.7, left + 2.7], [0.95, top, top + 0.7, top, 0.95], color=BLUE)
        axes.text(left + 1.35, top + 0.1, title, ha="center", va="bottom", fontsize=8, color=GREY)
    for number, (room, words_of) in enumerate(reversed(ABOVE.items())):
        box(0, 4.5 + 0.7 * number, 9, 0.5, f"{room}: {words_of}")
    axes.set(xlim=(-0.1, 9.1), ylim=(-0.1, 5.9))
    axes.axis("off")
    return figure


# -- all directions that leave a GPT's function alone ------------------------------------------------------------------

KINDS = {
    "linear": ("#4477aa", "any invertible matrix"),
    "rotations": ("#aa3377", "rotations"),
    "gains": ("#ee6677", "gains of norms"),
    "means": ("#ccbb44", "means that norms subtract"),
    "constants": ("#228833", "constants that flow on"),
}
PARTS = {  # of the network, in order, and the beginnings of what belongs to each
    "tokens\nand places": ("tokens.", "places."),
    "norm 1": ("norm1.",),
    "queries\nand keys": ("attention.q.", "attention.k.", "attention_q"),
    "values\nand outputs": ("attention.v.", "attention.o.", "attention_v"),
    "norm 2": ("norm2.",),
    "MLP": ("up.", "down."),
    "norm 3": ("norm3.",),
    "head": ("head.",),
}
COLUMNS = 6  # of squares


class Block(nn.Module):
    """A GPT of width 5 with one block: two heads of 3, an MLP of 4; 11 tokens, 6 places."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 5), nn.Embedding(6, 5)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(5) for _ in range(3))
        self.attention = nn.ModuleDict({name: nn.Linear(5, 6) for name in "qkv"} | {"o": nn.Linear(6, 5)})
        self.up, self.down, self.head = nn.Linear(5, 4), nn.Linear(4, 5), nn.Linear(5, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        q, k, v = (self.attention[name](self.norm1(x)).unflatten(-1, (2, 3)).transpose(1, 2) for name in "qkv")
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention["o"](seen.transpose(1, 2).flatten(2))
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return self.head(self.norm3(x))


def fibre() -> Figure:
    """One square for each direction, under the part of the network that it moves."""
    torch.manual_seed(0)
    form = normal_form(Block(), torch.randint(11, (2, 6)))
    directions = form.directions()
    total = sum(math.prod(shape) for shape in form.whole.shapes().values())
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots()
    wide = COLUMNS + 2
    end = len(PARTS) * wide - 2
    turned = directions["rotations"].values()
    axes.plot([-1, end + 1], [1.2, 1.2], color=GREY, linewidth=2)
    axes.text(-1, 1.6, f"the stream of 5: {sum(turned)} rotations in the plane of means 0", color=GREY, fontsize=10)
    _squares(axes, end - sum(turned) + 1, 1.7, ["rotations"] * sum(turned), sum(turned))
    for number, (part, begins) in enumerate(PARTS.items()):
        left = number * wide
        axes.add_patch(FancyBboxPatch((left, -1.9), COLUMNS, 1.9, "round,pad=0.2", facecolor="#eef2f7", edgecolor=GREY))
        axes.text(left + COLUMNS / 2, -0.95, part, ha="center", va="center", fontsize=9)
        axes.plot([left + COLUMNS / 2] * 2, [0.2, 1.2], color=GREY, linewidth=1)
        counts = {
            kind: sum(n for where, n in places.items() if where.startswith(begins))
            for kind, places in directions.items()
            if kind != "rotations"
        }
        _squares(axes, left, -3.4, [kind for kind, n in counts.items() for _ in range(n)], COLUMNS)
        axes.text(left + COLUMNS / 2, -10.8, sum(counts.values()), ha="center", fontsize=11)
    labels = [f"{sum(directions[kind].values())}  {words}" for kind, (_, words) in KINDS.items()]
    patches = [Rectangle((0, 0), 1, 1, facecolor=colour) for colour, _ in KINDS.values()]
    figure.legend(patches, labels, loc="outside lower center", ncols=len(KINDS), frameon=False, fontsize=9)
    axes.set(xlim=(-1.5, end + 1.5), ylim=(-11, 3.2), aspect="equal")
    axes.set_title(f"{form.fibre_dimension} of {total} directions leave the function as it is", fontsize=12)
    axes.axis("off")
    return figure


def _squares(axes: Axes, left: float, top: float, kinds: Sequence[str], columns: int) -> None:
    for number, kind in enumerate(kinds):
        row, column = divmod(number, columns)
        axes.add_patch(Rectangle((left + column, top - row), 0.9, 0.9, facecolor=KINDS[kind][0]))


FIGURES: dict[str, Callable[[], Figure]] = {
    "same_function": same_function,
    "charges": charges,
    "partitions": partitions,
    "rooms": rooms,
    "houses": houses,
    "fibre": fibre,
}


def words(figure: Figure) -> str:
    """Returns all texts of a figure; they are the description in its file, for those who cannot see it."""
    return "; ".join(written for text in figure.findobj(Text) if (written := text.get_text().strip()))


def main() -> None:
    """Draws all figures; equal code gives equal files."""
    IMAGES.mkdir(exist_ok=True)
    mpl.rcParams["svg.hashsalt"] = "nfn-monomial"
    for name, draw in FIGURES.items():
        figure = draw()
        described = {"Date": None, "Title": name, "Description": words(figure)}
        figure.savefig(IMAGES / f"{name}.svg", facecolor="white", metadata=described)


if __name__ == "__main__":
    main()
