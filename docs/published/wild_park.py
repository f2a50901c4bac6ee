"""The CNN Wild Park (Kofinas et al. 2024): residual CNNs of many widths and activations, as a folder with a table.

The checkpoints of one network go into the same part."""

import json
from pathlib import Path

import torch
from torch import nn

from nfn_monomial.tools.files.tensors import read_torch_file

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "leaky_relu": nn.LeakyReLU}


class WildCnn(nn.Module):
    """A residual connection adds an earlier layer's output to the channels that both have."""

    def __init__(self, channels, kernel_size, activation, residual):
        super().__init__()
        sizes = zip(channels, channels[1:], kernel_size, strict=False)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, k, padding=k // 2) for a, b, k in sizes)
        self.activations = nn.ModuleList(ACTIVATIONS.get(name, nn.Identity)() for name in activation)
        self.residual, self.fc = residual, nn.Linear(channels[-1], 10)

    def forward(self, x):
        outputs = []
        for layer, activation, source in zip(self.layers, self.activations, self.residual, strict=False):
            x = layer(x)
            if source >= 0:
                shared = min(x.shape[1], outputs[source].shape[1])
                x = torch.cat([x[:, :shared] + outputs[source][:, :shared], x[:, shared:]], 1)
            outputs.append(x := activation(x))
        return self.fc(x.mean((2, 3)))


def example_inputs():
    return torch.randn(2, 3, 8, 8)


def plain(node):
    """OmegaConf's nodes as dicts, lists and values; its code is not needed."""
    if hasattr(node, "__dict__"):
        node = vars(node).get("_content", vars(node).get("_val"))
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    return [plain(value) for value in node] if isinstance(node, list) else node


def write_wild_park_table(folder):
    files = sorted(Path(folder).rglob("checkpoint.pt"))
    networks = sorted(
        {file.parents[1] if file.parent.name.startswith("checkpoint_") else file.parent for file in files}
    )
    order = torch.randperm(len(networks), generator=torch.Generator().manual_seed(0)).tolist()
    parts = {networks[i]: ("val", "test", *["train"] * 4)[n % 6] for n, i in enumerate(order)}
    lines = []
    for file in files:
        content = read_torch_file(file)
        config = plain(content["config"])
        names = ("channels", "kernel_size", "activation", "residual")
        lines.append(
            {
                "checkpoint": file.relative_to(folder).as_posix(),
                "accuracy": float(content["last_result"]["test/acc"]),
                "split": next(parts[place] for place in file.parents if place in parts),
                "arguments": {name: config[name] for name in names},
            }
        )
    Path(folder, "targets.json").write_text(json.dumps(lines))
