"""The CNN Wild Park (Kofinas et al. 2024): networks whose architectures and activations vary."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from nfn_monomial import Axis, Symmetry, WeightSpace, symmetry_of
from nfn_monomial.benchmarks.data.networks import Corpus, MixedInfo, NetworkInfo, Networks, Part, Parts
from nfn_monomial.space import Dim

from .base import CorpusError, Format, OnProgress, register_format
from .checkpoints import (
    Shape,
    counter,
    layers_of,
    parameters_of,
    read_mapping,
    require_folder,
    shape_of,
    silent,
    some_folders,
)
from .model_zoos import MODULES, share, split

__all__ = ["CnnWildPark", "ResidualMode"]

ResidualMode = Literal["skip", "tie"]
FILE = "checkpoint.pt"


class _Wild(NamedTuple):
    """What decides whether two networks are of one architecture; ``residual``: source layer of each layer, or -1."""

    shape: Shape
    activations: tuple[str, ...]
    residual: tuple[int, ...]

    @property
    def fits(self) -> bool:
        """Whether residual connections join layers of equal width, so that their neurons can be tied."""
        outputs = self.shape.sizes[1:]
        return all(j < 0 or outputs[i] == outputs[j] for i, j in enumerate(self.residual))

    def space(self) -> WeightSpace:
        """Layers joined by a residual connection are one node, whose group commutes with all activations on it."""
        hidden: list[str] = []
        for i, source in enumerate(self.residual):
            hidden.append(f"h{i + 1}" if source < 0 else hidden[source])
        names = ["x", *hidden, "y"]
        group = dict.fromkeys(names, Symmetry.FIXED) | dict.fromkeys(hidden, Symmetry.MONOMIAL)
        for name, activation in zip(hidden, self.activations, strict=True):
            group[name] &= symmetry_of(MODULES[activation])
        parameters: dict[str, Sequence[Dim]] = {}
        for i, (kernel, positions) in enumerate(zip(self.shape.kernels, self.shape.positions, strict=True)):
            rows, columns = Axis(names[i + 1], +1), Axis(names[i], -1)
            parameters[f"weight.{i}"] = (rows, columns if positions == 1 else (columns, positions), *kernel)
            parameters[f"bias.{i}"] = (rows,)
        sizes = zip(names, self.shape.sizes, strict=True)
        return WeightSpace({name: (group[name], size) for name, size in sizes}, parameters)


@register_format("cnn-wild-park")
class CnnWildPark(Format):
    """A folder a network with ``checkpoint.pt``: ``model`` (the state dict), ``config``, ``last_result``.

    Networks are grouped by architecture and activations. Those with residual connections have no chain of layers,
    which is what all models of mixed networks read, so they are left out by default. All are held in memory, however
    many there are.
    """

    kind = "generalization"
    looks_for = "checkpoint.pt in folders of its own, up to two levels down"

    @staticmethod
    def detects(path: Path) -> bool:
        folders = some_folders(path)
        return any((inner / FILE).is_file() for folder in folders for inner in (folder, *some_folders(folder)))

    @staticmethod
    def load(
        path: str | Path,
        *,
        residuals: ResidualMode = "skip",
        seed: int = 0,
        limit: int | None = None,
        on_progress: OnProgress = silent,
    ) -> dict[str, Corpus]:
        """Load the park: one corpus of many architectures, ``mixed``; 70, 15 and 15 percent of the networks.

        Args:
            path: the folder with the networks' folders.
            residuals: what to do with networks that have residual connections: leave them out (``skip``), or ``tie``
                the layers they join, which have one set of neurons then. Where the two layers differ in width that
                cannot be, and they are left out in any case. ``source`` has the numbers.
            seed: of the split, which is one of all networks, before any is left out.
            limit: take that many training networks.
            on_progress: called while files are read.

        Raises:
            CorpusError: naming the file, if one is damaged, or nothing is left.
        """
        folder = require_folder(path)
        if residuals not in get_args(ResidualMode):
            raise CorpusError(f"residuals is {residuals!r}, expected one of {', '.join(get_args(ResidualMode))}")
        files = sorted(file for pattern in (f"*/{FILE}", f"*/*/{FILE}") for file in folder.glob(pattern))
        parts = split(len(files), seed, folder, limit)
        step = counter(sum(map(len, parts.values())), on_progress)
        left_out: Counter[str] = Counter()
        infos: dict[_Wild, NetworkInfo] = {}
        loaded: dict[str, Parts] = {}
        for part, numbers in parts.items():
            groups: dict[_Wild, list[tuple[dict[str, Tensor], float]]] = defaultdict(list)
            for number in numbers:
                network, tensors, accuracy = _read_wild(files[number])
                step()
                if not network.fits:
                    left_out["residual connection between layers of different widths"] += 1
                elif residuals == "skip" and max(network.residual) >= 0:
                    left_out["residual connection"] += 1
                else:
                    groups[network].append((tensors, accuracy))
            loaded[part] = tuple(_wild_part(network, found, infos) for network, found in groups.items())
        if empty := [part for part, found in loaded.items() if not found]:
            why = ", ".join(f"{count} with a {what}" for what, count in left_out.items())
            raise CorpusError(
                f"{folder}: no network is left for {' and '.join(empty)}; left out: {why}. residuals='tie' "
                "(--data-option residuals=tie) keeps those that join layers of equal width"
            )
        source = {
            "format": "cnn-wild-park", "path": str(folder), "split": f"70/15/15 percent of networks, seed {seed}",
            "architectures": len(infos), "residuals": residuals, "left_out": dict(left_out),
            **{part: sum(map(len, found)) for part, found in loaded.items()},
        }  # fmt: skip
        known = tuple(infos.values())
        return {
            "mixed": Corpus("mixed", **loaded, info=known[0] if len(known) == 1 else MixedInfo(known), source=source)
        }


def _wild_part(
    network: _Wild, found: Sequence[tuple[dict[str, Tensor], float]], infos: dict[_Wild, NetworkInfo]
) -> Part:
    if network not in infos:
        infos[network] = NetworkInfo(network.space(), "/".join(dict.fromkeys(network.activations)))
    tensors = {name: torch.stack([own[name] for own, _ in found]) for name in found[0][0]}
    return Part(Networks(tensors, torch.tensor([accuracy for _, accuracy in found])), infos[network])


def _read_wild(path: Path) -> tuple[_Wild, dict[str, Tensor], float]:
    content = read_mapping(path)
    state, config, result = (content.get(name) for name in ("model", "config", "last_result"))
    if not all(isinstance(value, Mapping) for value in (state, config, result)):
        raise CorpusError(
            f"{path} has entries {', '.join(map(str, content))}, expected dicts model, config, last_result"
        )
    layers = layers_of(state, path, r"layers\.\d+|fc", "layers.{i}.weight, fc.weight and their .bias")  # type: ignore[arg-type]
    depth = len(layers) - 1
    if list(layers) != [*(f"layers.{i}" for i in range(depth)), "fc"] or depth < 1:
        raise CorpusError(f"{path}: layers {', '.join(layers)}, expected layers.0, layers.1, ... and fc")
    tensors = parameters_of(layers, path)
    shape = shape_of({name: t.shape for name, t in tensors.items()})

    if config.get("n_layers") != depth:  # type: ignore[union-attr]
        raise CorpusError(f"{path}: n_layers in config is {config.get('n_layers')!r}, but there are {depth} layers")  # type: ignore[union-attr]

    def setting(name: str, expected: Sequence[Any] | None = None) -> list[Any]:
        """One or one per layer."""
        value = config.get(name)  # type: ignore[union-attr]
        values = list(value) if isinstance(value, list | tuple) else [value] * depth
        if len(values) != depth or (expected is not None and values != list(expected)):
            what = f"one for each of {depth} layers" if expected is None else f"{list(expected)}, as the weights have"
            raise CorpusError(f"{path}: {name} in config is {value!r}, expected {what}")
        return values

    setting("channels", shape.sizes[1:-1])
    setting("kernel_size", [kernel[0] if kernel else None for kernel in shape.kernels[:-1]])
    residual = setting("residual")
    if not all(type(j) is int and -1 <= j < i for i, j in enumerate(residual)):
        raise CorpusError(f"{path}: residual in config is {residual}, expected an earlier layer or -1 for each layer")
    activations = [str(name).lower() for name in setting("activation")]
    if unknown := sorted(set(activations) - MODULES.keys()):
        raise CorpusError(f"{path}: activation {', '.join(unknown)} is not known, expected one of {', '.join(MODULES)}")
    accuracy = share(result.get("test/acc"), path, "last_result['test/acc']")  # type: ignore[union-attr]
    return _Wild(shape, tuple(activations), tuple(residual)), tensors, accuracy
