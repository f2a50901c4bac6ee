"""ModelZoos (Schürholt et al. 2022), the smallest of their three CNNs: a folder with a table.

Max-poolings and dropout are where `module_list` has no parameters. Of each model the last checkpoint that has a result
is taken."""

import json
from pathlib import Path

import torch
from torch import nn

ACTIVATIONS = {
    "relu": nn.ReLU,
    "leakyrelu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class ZooCnn(nn.Module):
    def __init__(self, channels, nlin, dropout):
        super().__init__()
        act, drop = ACTIVATIONS[nlin], [nn.Dropout(0.5)] * bool(dropout)
        self.module_list = nn.ModuleList(
            [
                nn.Conv2d(channels, 8, 5),
                nn.MaxPool2d(2, 2),
                act(),
                *drop,
                nn.Conv2d(8, 6, 5),
                nn.MaxPool2d(2, 2),
                act(),
                *drop,
                nn.Conv2d(6, 4, 2),
                act(),
                nn.Flatten(),
                nn.Linear(36, 20),
                act(),
                *drop,
                nn.Linear(20, 10),
            ]
        )

    def forward(self, x):
        for module in self.module_list:
            x = module(x)
        return x


def network(channels, nlin, dropout):
    return ZooCnn(channels, nlin, dropout).eval(), torch.randn(2, channels, 28, 28)


def write_model_zoo_table(folder, channels=1):
    lines = []
    for place in sorted(Path(folder).glob("NN_tune_trainable_*")):
        results = {}
        for text in (place / "result.json").read_text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # the last line of a run that crashed
            results[line["training_iteration"]] = line
        saved = {int(path.name.split("_")[1]): path / "checkpoints" for path in place.glob("checkpoint_*")}
        epoch = max(results.keys() & saved.keys())
        config = results[epoch]["config"]
        lines.append(
            {
                "checkpoint": saved[epoch].relative_to(folder).as_posix(),
                "accuracy": results[epoch]["test_acc"],
                "arguments": {
                    "channels": channels,
                    "nlin": config["model::nlin"],
                    "dropout": config.get("model::dropout", 0),
                },
            }
        )
    Path(folder, "targets.json").write_text(json.dumps(lines))
