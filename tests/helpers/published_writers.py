"""Small folders in exactly the published formats, written with torch alone: the networks are modules of their own.

Every writer returns file -> network, so that tests can ask what the network in a file computes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import safetensors.torch
import torch
from torch import Tensor, nn


class SineLayer(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(30 * self.linear(x))


class NfnSiren(nn.Module):
    """nfn's: keys ``net.0.linear.weight``, ..., ``net.2.bias``; makes pixels normalised by (.5, .5)."""

    def __init__(self, hidden: int = 32, channels: int = 1) -> None:
        super().__init__()
        self.net = nn.Sequential(SineLayer(2, hidden), SineLayer(hidden, hidden), nn.Linear(hidden, channels))

    def image(self, size: int) -> Tensor:
        axis = torch.linspace(-1, 1, size)
        x = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)
        return self.net(x).permute(2, 0, 1) * 0.5 + 0.5


class DwsInr(nn.Module):
    """DWSNets': keys ``seq.0.weight``, ..., ``seq.2.bias``; pixels are outputs + 0.5."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(2, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1))

    def image(self, size: int) -> Tensor:
        axis = torch.linspace(-1, 1, size)
        x = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)  # column and row
        for layer in self.seq[:2]:
            x = torch.sin(30 * layer(x))
        return self.seq[2](x).permute(2, 0, 1) + 0.5


def save(state: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)


def write_nfn(
    folder: Path, numbers: Sequence[int], prefix: str = "randinit_smaller", *, hidden: int = 8, channels: int = 1
) -> dict[Path, NfnSiren]:
    """``{prefix}_{label}s/net{idx}.pth``; image idx has the class idx % 10, and all ten folders are there."""
    made = {}
    for label in range(10):
        (folder / f"{prefix}_{label}s").mkdir(parents=True, exist_ok=True)
    for number in numbers:
        path = folder / f"{prefix}_{number % 10}s" / f"net{number}.pth"
        made[path] = NfnSiren(hidden, channels)
        save(made[path].state_dict(), path)
    return made


def write_dws_mnist(folder: Path, parts: Mapping[str, Sequence[tuple[str, int, int]]]) -> dict[Path, DwsInr]:
    """``mnist-inrs`` and ``mnist_splits.json``; parts: split -> (training | testing, label, imgid)."""
    made, splits = {}, {}
    for part, images in parts.items():
        names = [f"mnist-inrs/mnist_png_{kind}_{label}_{i}/checkpoints/model_final.pth" for kind, label, i in images]
        splits[part] = {"path": names, "label": [str(label) for _, label, _ in images]}
        for name in names:
            made[folder / name] = DwsInr(8)
            save(made[folder / name].state_dict(), folder / name)
    (folder / "mnist_splits.json").write_text(json.dumps(splits), encoding="utf-8")
    return made


def write_dws_fashion(folder: Path, labels: Mapping[str, Sequence[int]]) -> dict[Path, DwsInr]:
    """``fmnist_inrs/{split}/model_{i}.pth`` with the label among the tensors."""
    made = {}
    for part, own in labels.items():
        for i, label in enumerate(own):
            path = folder / "fmnist_inrs" / part / f"model_{i}.pth"
            made[path] = DwsInr(8)
            save({**made[path].state_dict(), "label": label}, path)
    return made


class ZooCnn(nn.Module):
    """The small CNN of ModelZoos for images of 28 x 28: keys ``module_list.{i}.weight``."""

    def __init__(self, channels: int = 1, activation: type[nn.Module] = nn.Tanh, dropout: bool = False) -> None:
        super().__init__()
        drop = [nn.Dropout(0.3)] if dropout else []
        # fmt: off
        self.module_list = nn.ModuleList([
            nn.Conv2d(channels, 8, 5), nn.MaxPool2d(2, 2), activation(), *drop,
            nn.Conv2d(8, 6, 5), nn.MaxPool2d(2, 2), activation(), *drop,
            nn.Conv2d(6, 4, 2), activation(), nn.Flatten(), nn.Linear(36, 20), activation(), *drop, nn.Linear(20, 10),
        ])
        # fmt: on

    def forward(self, x: Tensor) -> Tensor:
        for module in self.module_list:
            x = module(x)
        return x


def result_line(epoch: int, accuracy: float, config: Mapping[str, Any]) -> str:
    accuracies = {"train_acc": accuracy, "val_acc": accuracy / 2, "test_acc": accuracy}
    return json.dumps({"training_iteration": epoch, **accuracies, "config": dict(config)}) + "\n"


def write_model_zoo(
    folder: Path, models: int, epochs: Sequence[int] = (5, 10), config: Mapping[str, Any] | None = None, **options: Any
) -> dict[Path, ZooCnn]:
    """``NN_tune_trainable_*``: test accuracy of model m at epoch e is ``m / 100 + e / 10000``."""
    made = {}
    found = len(list(folder.glob("NN_tune_trainable_*")))
    for m in range(found, found + models):
        place = folder / f"NN_tune_trainable_{m:05d}_{m}_seed={m}"
        for epoch in epochs:
            path = place / f"checkpoint_{epoch:06d}" / "checkpoints"
            made[path] = ZooCnn(**options)
            save(made[path].state_dict(), path)
        lines = [result_line(e, m / 100 + e / 10_000, config or {"model::nlin": "tanh"}) for e in range(1, 11)]
        (place / "result.json").write_text("".join(lines), encoding="utf-8")
    return made


ACTIVATIONS = {
    "relu": torch.relu, "gelu": nn.functional.gelu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "leaky_relu": nn.functional.leaky_relu, "none": lambda x: x,
}  # fmt: skip


class WildCnn(nn.Module):
    """Keys ``layers.{i}.weight``, ``fc.weight``; a residual connection adds an earlier output to the first channels."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = dict(config)
        widths = config["channels"]
        self.layers = nn.ModuleList(
            nn.Conv2d(a, b, k, padding=k // 2)
            for a, b, k in zip(widths[:-1], widths[1:], config["kernel_size"], strict=True)
        )
        self.fc = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for layer, source, name in zip(self.layers, self.config["residual"], self.config["activation"], strict=True):
            x = layer(x).clone()
            if source >= 0:
                shared = min(x.shape[1], outputs[source].shape[1])
                x[:, :shared] += outputs[source][:, :shared]
            x = ACTIVATIONS[name](x)
            outputs.append(x)
        return self.fc(x.mean((-2, -1)))


def wild_config(
    channels: Sequence[int], kernels: Sequence[int], activations: Sequence[str], residual: Sequence[int] | None = None
) -> dict[str, Any]:
    return {
        "n_layers": len(channels), "n_classes": 10, "channels": [3, *channels], "kernel_size": list(kernels),
        "stride": [1] * len(channels), "padding": [kernel // 2 for kernel in kernels],
        "residual": list(residual or [-1] * len(channels)), "activation": list(activations),
    }  # fmt: skip


def write_wild_park(folder: Path, configs: Sequence[Mapping[str, Any]], start: int = 0) -> dict[Path, WildCnn]:
    """``{n}/checkpoint.pt``, one a configuration; its accuracy is ``n / 1000``."""
    made = {}
    for n, config in enumerate(configs, start=start):
        path = folder / f"{n:05d}" / "checkpoint.pt"
        made[path] = WildCnn(config)
        result = {"test/acc": n / 1000, "test/loss": 2.3}
        save({"model": made[path].state_dict(), "config": dict(config), "last_result": result}, path)
    return made


class _OmegaNode:
    """As OmegaConf pickles values: attributes, among them a parent and metadata."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__ |= {"_parent": None, "_metadata": {"optional": True}, **attributes}


def save_as_omegaconf(content: Mapping[str, Any], path: Path) -> None:
    """A checkpoint whose ``config`` is pickled as OmegaConf does: objects of classes in a package of that name."""
    homes = {"DictConfig": "omegaconf.dictconfig", "ListConfig": "omegaconf.listconfig", "AnyNode": "omegaconf.nodes"}
    classes = {name: type(name, (_OmegaNode,), {"__module__": home}) for name, home in homes.items()}
    modules = {"omegaconf": ModuleType("omegaconf")} | {home: ModuleType(home) for home in homes.values()}
    for name, home in homes.items():
        setattr(modules[home], name, classes[name])

    def node(value: Any) -> _OmegaNode:
        if isinstance(value, list):
            return classes["ListConfig"](_content=list(map(node, value)))
        return classes["AnyNode"](_val=value)

    config = classes["DictConfig"](_content={name: node(value) for name, value in content["config"].items()})
    with patch.dict(sys.modules, modules):
        save({**content, "config": config}, path)


class HubNet(nn.Module):
    """A network whose names do not sort in the order in which they run."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3, bias=False), nn.ReLU())
        self.classifier = nn.Sequential(nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def write_hub(folder: Path, repos: Sequence[str]) -> dict[Path, HubNet]:
    """``{repo}/model.safetensors``, ``config.json``, and ``results.json`` with accuracy n / 100 for the n-th."""
    made = {}
    for n, repo in enumerate(repos):
        path = folder / repo / "model.safetensors"
        path.parent.mkdir(parents=True)
        made[path] = HubNet()
        safetensors.torch.save_file(made[path].state_dict(), path, metadata={"format": "pt"})
        (path.parent / "config.json").write_text(json.dumps({"hidden_act": "relu"}), encoding="utf-8")
        (path.parent / "results.json").write_text(json.dumps({"accuracy": n / 100}), encoding="utf-8")
    return made


class Marker:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def truncate(path: Path, keep: float = 0.6) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data))])


def edit(path: Path, **changes: Any) -> None:
    """Write a state dict again with other values; None removes a key. Dots in keys are ``__``."""
    state = torch.load(path, weights_only=True)
    for name, value in changes.items():
        key = name.replace("__", ".")
        if value is None:
            del state[key]
        else:
            state[key] = value
    torch.save(state, path)
