"""The networks of the page on learning from checkpoints: `python docs/learn.py FOLDER [RUNS]`, half a minute.

Writes net.py, a class with batch norm for 8x8 digits; runs/run-7/epoch-3.ckpt, checkpoints of three epochs of each run,
as Lightning writes them; and runs.csv.
"""

import csv
import random
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

NET = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 16), nn.BatchNorm1d(16), nn.ReLU()
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.body(x))


def example_inputs():
    return torch.randn(2, 64)
"""
EPOCHS = (1, 3, 8)  # after which a checkpoint is written


def make(folder: Path, runs: int = 90) -> None:
    """Trains all runs, with hyperparameters drawn for each."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
    y = torch.tensor(digits.target)[order]
    (folder / "runs").mkdir(parents=True)
    (folder / "net.py").write_text(NET, encoding="utf-8")
    home: dict = {}
    exec(NET, home)
    rows = []
    draw = random.Random(0)
    for run in range(runs):
        torch.manual_seed(run)
        optimiser = draw.choice(["sgd", "adam", "rmsprop"])
        rate = 10 ** draw.uniform(-3.3, -0.7) * (1 if optimiser == "sgd" else 0.1)
        decay, size, noise = (
            draw.choice([0, 1e-3, 1e-2]),
            draw.choice([60, 200, 600, 1200]),
            draw.choice([0, 0, 0.2, 0.5]),
        )
        labels = torch.where(torch.rand(size) < noise, torch.randint(10, (size,)), y[:size])
        net = home["Net"]()
        more = {"momentum": 0.9} if optimiser == "sgd" else {}
        classes = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
        optimizer = classes[optimiser](net.parameters(), rate, weight_decay=decay, **more)
        for epoch in range(1, EPOCHS[-1] + 1):
            net.train()
            for batch in torch.randperm(size).split(32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[batch]), labels[batch]).backward()
                optimizer.step()
            if epoch in EPOCHS:
                with torch.no_grad():
                    answers = net.eval()(x[1200:])
                path = Path("runs") / f"run-{run}" / f"epoch-{epoch}.ckpt"
                (folder / path).parent.mkdir(exist_ok=True)
                state = {f"model.{key}": t for key, t in net.state_dict().items()}
                torch.save(
                    {"epoch": epoch, "state_dict": state, "optimizer_states": [optimizer.state_dict()]}, folder / path
                )
                accuracy = (answers.argmax(1) == y[1200:]).double().mean().item()
                loss = nn.functional.cross_entropy(answers, y[1200:]).item()
                rows.append(
                    {"run": run, "checkpoint": path, "epoch": epoch, "optimiser": optimiser, "loss": f"{loss:.4f}",
                     "accuracy": f"{100 * accuracy:.1f}%"}
                )  # fmt: skip
    with open(folder / "runs.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    make(Path(sys.argv[1]), *map(int, sys.argv[2:]))
