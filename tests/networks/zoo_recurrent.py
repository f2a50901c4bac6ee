"""Recurrent networks: the rows of their matrices are segments, one for each gate, over the hidden state."""

import torch
from networks.zoo import Items, Network, gaussian
from torch import Tensor, nn


class Recurrent(nn.Module):
    """A recurrent layer and a linear map of the mean of its outputs."""

    def __init__(self, layer: nn.Module, features: int) -> None:
        super().__init__()
        self.rnn, self.head = layer, nn.Linear(features, 3)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.rnn(x)
        return self.head(output.mean(dim=1))


class Cell(nn.Module):
    """A loop over a cell, gates as nn.GRUCell has them."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(2, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 5)
        outputs = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            outputs.append(self.head(h))
        return torch.stack(outputs, dim=1)


class HandWrittenLSTM(nn.Module):
    """Gates without biases of their own, chunks of one matrix of input and state."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.out = nn.Linear(2 + 4, 16), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.size(0), 4, dtype=x.dtype)
        for step in x.unbind(1):
            i, f, g, o = self.gates(torch.cat((step, h), dim=1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.out(h)


def gates(count: int, node: str, inputs: str, suffix: str) -> dict[str, str]:
    rows = "+".join([node] * count)
    return {
        f"rnn.weight_ih_{suffix}": f"{rows} {inputs}", f"rnn.weight_hh_{suffix}": f"{rows} {node}",
        f"rnn.bias_?h_{suffix}": rows,
    }  # fmt: skip


STATE = {"h": Items(5, 0, 1)}
BIDIRECTIONAL = {name: Items(3, 0, 1) for name in ("f0", "b0", "f1", "b1")}

NETWORKS = [
    Network("rnn_tanh", lambda: Recurrent(nn.RNN(2, 5, batch_first=True), 5), gaussian((8, 4, 2)), STATE),
    Network(
        "rnn_relu",
        lambda: Recurrent(nn.RNN(2, 5, nonlinearity="relu", batch_first=True), 5),
        gaussian((8, 4, 2)),
        {"h": Items(5, 1, 0)},
    ),
    Network(
        "lstm",
        lambda: Recurrent(nn.LSTM(2, 5, batch_first=True), 5),
        gaussian((8, 4, 2)),
        STATE,
        gates(4, "h", "2", "l0"),
    ),
    Network(
        "gru",
        lambda: Recurrent(nn.GRU(2, 5, batch_first=True), 5),
        gaussian((8, 4, 2)),
        STATE,
        gates(3, "h", "2", "l0"),
    ),
    Network(
        "lstm_bidirectional",
        lambda: Recurrent(nn.LSTM(2, 3, num_layers=2, bidirectional=True, batch_first=True), 6),
        gaussian((8, 3, 2)),
        BIDIRECTIONAL,
        {
            **gates(4, "f0", "2", "l0"),
            **gates(4, "b0", "2", "l0_reverse"),
            **gates(4, "f1", "f0+b0", "l1"),
            **gates(4, "b1", "f0+b0", "l1_reverse"),
            "head.weight": "3 f1+b1",
            "head.bias": "3",
        },
    ),
    Network(
        "gru_cell",
        Cell,
        gaussian((8, 4, 2)),
        STATE,
        {"cell.weight_ih": "h+h+h 2", "cell.weight_hh": "h+h+h h", "cell.bias*": "h+h+h"},
    ),
    Network(
        "lstm_by_hand",
        HandWrittenLSTM,
        gaussian((8, 4, 2)),
        {"h": Items(4, 0, 1)},
        {"gates.weight": "h+h+h+h 2+h", "gates.bias": "h+h+h+h"},
    ),
]
