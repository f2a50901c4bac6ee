"""The CNN Wild Park (Kofinas et al. 2024): networks whose architectures and activations vary."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.chains import Shape, shape_of
from nfn_monomial.adapters.files import damaged, listed, shown
from nfn_monomial.adapters.tensor_files import Inert
from nfn_monomial.benchmarks.data.networks import Corpus, Networks, Part, Parts
from nfn_monomial.tools.predictors.models import MixedInfo, NetworkInfo

from .base import CorpusError, Format, OnProgress, register_format
from .checkpoints import counter, read_layers, read_mapping, require_folder, silent, some_folders
from .model_zoos import MODULES, share, split

__all__ = ["CnnWildPark", "WildNetwork"]

FILE = "checkpoint.pt"
CHECKPOINT = "checkpoint_"  # how folders of the several checkpoints of one network start
SIDE = 8  # of the images on which spaces are derived
IMAGE = (3, 32, 32)  # CIFAR-10, of which all networks of the park are classifiers


class _Wild(NamedTuple):
    """What decides whether two networks are of one architecture; ``residual``: source layer of each layer, or -1."""

    shape: Shape
    activations: tuple[str, ...]
    residual: tuple[int, ...]

    @property
    def info(self) -> NetworkInfo:
        """Weight space and module; images are those of CIFAR-10 where channels fit."""
        image = IMAGE if self.shape.sizes[0] == IMAGE[0] else None
        label = "/".join(dict.fromkeys(self.activations))
        return NetworkInfo(_space(self), label, partial(WildNetwork, self), image)


class WildNetwork(nn.Module):
    """A network of the park: convolutions that keep the map's size, global average pooling, a linear layer.

    With a residual connection a layer adds the output of an earlier one, behind that one's activation and in front of
    its own, on the channels that both have: the first ``min`` of the two widths. Source: the code of Kofinas et al.
    2024, github.com/mkofinas/neural-graphs, experiments/cnn_generalization/dataset/cnn_sampler.py.

    Args:
        architecture: sizes, activations and residual connections.
    """

    def __init__(self, architecture: _Wild) -> None:
        super().__init__()
        (*sizes, classes), (*kernels, _) = architecture.shape.sizes, architecture.shape.kernels
        self.residual = architecture.residual
        self.layers = nn.ModuleList(
            nn.Conv2d(before, width, (kernel[0], kernel[1]), padding="same")
            for before, width, kernel in zip(sizes, sizes[1:], kernels)  # noqa: B905  (the last width has none behind it)
        )
        self.activations = nn.ModuleList(MODULES[name]() for name in architecture.activations)
        self.fc = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(B, 3, H, W)`` -> logits ``(B, classes)``."""
        outputs: list[Tensor] = []
        for layer, activation, source in zip(self.layers, self.activations, self.residual, strict=True):
            x = layer(x)
            if source >= 0:
                earlier = outputs[source]
                shared = min(x.shape[1], earlier.shape[1])
                x = torch.cat([x[:, :shared] + earlier[:, :shared], x[:, shared:]], 1)
            x = activation(x)
            outputs.append(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


@functools.cache
def _space(architecture: _Wild) -> WeightSpace:
    """With parameters ``weight.i`` and ``bias.i`` in order of execution, which is that of the module's own."""
    with torch.random.fork_rng(devices=[]):
        found = WeightSpace.from_module(
            WildNetwork(architecture), torch.randn(2, architecture.shape.sizes[0], SIDE, SIDE)
        )
    names = [f"{role}.{i}" for i in range(len(architecture.shape.kernels)) for role in ("weight", "bias")]
    return WeightSpace(found.nodes, dict(zip(names, found.parameters.values(), strict=True)))


@register_format("cnn-wild-park")
class CnnWildPark(Format):
    """A folder a network with ``checkpoint.pt``: ``model`` (the state dict), ``config``, ``last_result``.

    Networks are grouped by architecture, activations and residual connections. All are held in memory, however many
    there are.
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
        seed: int = 0,
        limit: int | None = None,
        on_progress: OnProgress = silent,
    ) -> dict[str, Corpus]:
        """Load the park: one corpus of many architectures, ``mixed``; 70, 15 and 15 percent of the networks.

        Args:
            path: the folder with the networks' folders.
            seed: of the split; the checkpoints of one network are in the same part.
            limit: train on that many networks.
            on_progress: called while files are read.

        Raises:
            CorpusError: naming the file, if one is damaged.
        """
        folder = require_folder(path)
        files = sorted(file for pattern in (f"*/{FILE}", f"*/*/{FILE}") for file in folder.glob(pattern))
        networks: dict[Path, list[Path]] = defaultdict(list)
        for file in files:
            networks[file.parent.parent if file.parent.name.startswith(CHECKPOINT) else file.parent].append(file)
        places = list(networks)
        parts = {
            part: [file for i in numbers for file in networks[places[i]]]
            for part, numbers in split(len(places), seed, folder, limit).items()
        }
        step = counter(sum(map(len, parts.values())), on_progress)
        infos: dict[_Wild, NetworkInfo] = {}
        loaded: dict[str, Parts] = {}
        for part, chosen in parts.items():
            groups: dict[_Wild, list[tuple[dict[str, Tensor], float]]] = defaultdict(list)
            for file in chosen:
                network, tensors, accuracy = _read_wild(file)
                groups[network].append((tensors, accuracy))
                step()
            loaded[part] = tuple(_wild_part(network, found, infos) for network, found in groups.items())
        source = {
            "format": "cnn-wild-park", "path": str(folder), "split": f"70/15/15 percent of networks, seed {seed}",
            "architectures": len(infos), "residual": sum(max(network.residual) >= 0 for network in infos),
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
        infos[network] = network.info
    tensors = {name: torch.stack([own[name] for own, _ in found]) for name in found[0][0]}
    return Part(Networks(tensors, torch.tensor([accuracy for _, accuracy in found])), infos[network])


def _plain(config: Any) -> Any:
    """A configuration of OmegaConf (``_content`` of dicts and lists, ``_val`` of values) as dicts and lists."""

    def value(node: Any) -> Any:
        return vars(node).get("_val") if isinstance(node, Inert) else node

    def entry(node: Any) -> Any:
        found = vars(node).get("_content") if isinstance(node, Inert) else node
        return list(map(value, found)) if isinstance(found, list | tuple) else value(node)

    content = vars(config).get("_content") if isinstance(config, Inert) else config
    return {name: entry(node) for name, node in content.items()} if isinstance(content, Mapping) else config


def _read_wild(path: Path) -> tuple[_Wild, dict[str, Tensor], float]:
    with damaged(path, "download it again, or delete it", CorpusError):
        return _parse_wild(path)


def _parse_wild(path: Path) -> tuple[_Wild, dict[str, Tensor], float]:
    content = read_mapping(path)
    state, config, result = content.get("model"), _plain(content.get("config")), content.get("last_result")
    if not all(isinstance(value, Mapping) for value in (state, config, result)):
        raise CorpusError(f"{path} has entries {listed(content)}, expected dicts model, config, last_result")
    layers, tensors = read_layers(state, path, r"layers\.\d+|fc", "layers.{i}.weight, fc.weight and their .bias")  # type: ignore[arg-type]
    depth = len(layers) - 1
    if list(layers) != [*(f"layers.{i}" for i in range(depth)), "fc"] or depth < 1:
        raise CorpusError(f"{path}: layers {', '.join(layers)}, expected layers.0, layers.1, ... and fc")
    shape = shape_of({name: t.shape for name, t in tensors.items()})

    if config.get("n_layers") != depth:
        raise CorpusError(
            f"{path}: n_layers in config is {shown(config.get('n_layers'))}, but there are {depth} layers"
        )

    def setting(name: str, expected: Sequence[Any] | None = None) -> list[Any]:
        """One or one per layer."""
        value = config.get(name)
        values = list(value) if isinstance(value, list | tuple) else [value] * depth
        if len(values) != depth or (expected is not None and values != list(expected)):
            what = f"one for each of {depth} layers" if expected is None else f"{list(expected)}, as the weights have"
            raise CorpusError(f"{path}: {name} in config is {shown(value)}, expected {what}")
        return values

    if config.get("channels") != list(shape.sizes[:-1]):  # as published, those of images first
        setting("channels", shape.sizes[1:-1])
    if "stride" in config:
        setting("stride", [1] * depth)
    setting("kernel_size", [kernel[0] if kernel else None for kernel in shape.kernels[:-1]])
    residual = setting("residual")
    if not all(type(j) is int and -1 <= j < i for i, j in enumerate(residual)):
        raise CorpusError(
            f"{path}: residual in config is {shown(residual)}, expected an earlier layer or -1 for each layer"
        )
    activations = [str(name).lower() for name in setting("activation")]
    if unknown := sorted(set(activations) - MODULES.keys()):
        raise CorpusError(f"{path}: activation {listed(unknown)} is not known, expected one of {', '.join(MODULES)}")
    accuracy = share(result.get("test/acc"), path, "last_result['test/acc']")  # type: ignore[union-attr]
    return _Wild(shape, tuple(activations), tuple(residual)), tensors, accuracy
