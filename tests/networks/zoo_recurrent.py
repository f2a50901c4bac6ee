"""Recurrent networks: the rows of their matrices are segments, one for each gate, over the hidden state."""

import torch
from networks.zoo import Items, Of, gaussian, group, net
from torch import nn


def gates(count: int, node: str, inputs: str, suffix: str = "l0") -> dict[str, str]:
    rows = "+".join([node] * count)
    return {f"rnn.weight_ih_{suffix}": f"{rows} {inputs}", f"rnn.weight_hh_{suffix}": f"{rows} {node}"}


def mean_of_outputs(m, x):
    output, _ = m.rnn(x)
    return m.head(output.mean(dim=1))


STATE = {"h": Items(5, 0, 1)}
for name, layer, nodes, dims in (
    ("rnn_tanh", nn.RNN(2, 5, batch_first=True), STATE, {}),
    ("rnn_relu", nn.RNN(2, 5, nonlinearity="relu", batch_first=True), {"h": Items(5, 1, 0)}, {}),
    ("lstm", nn.LSTM(2, 5, batch_first=True), STATE, gates(4, "h", "2")),
    ("gru", nn.GRU(2, 5, batch_first=True), STATE, gates(3, "h", "2")),
):
    group(nodes, dims)((name, Of(mean_of_outputs, rnn=layer, head=nn.Linear(5, 3)), gaussian((8, 4, 2))))
BIDIRECTIONAL = nn.LSTM(2, 3, num_layers=2, bidirectional=True, batch_first=True)
group(
    {name: Items(3, 0, 1) for name in ("f0", "b0", "f1", "b1")},
    {
        **gates(4, "f0", "2"),
        **gates(4, "b0", "2", "l0_reverse"),
        **gates(4, "f1", "f0+b0", "l1"),
        **gates(4, "b1", "f0+b0", "l1_reverse"),
        "head": "3 f1+b1",
    },
)(("lstm_bidirectional", Of(mean_of_outputs, rnn=BIDIRECTIONAL, head=nn.Linear(6, 3)), gaussian((8, 3, 2))))


@group(STATE, {"cell.weight_ih": "h+h+h 2", "cell.weight_hh": "h+h+h h"})
@net(gaussian((8, 4, 2)), cell=nn.GRUCell(2, 5), head=nn.Linear(5, 3))
def gru_cell(m, x):
    """A loop over a cell, gates as nn.GRUCell has them."""
    h = x.new_zeros(x.shape[0], 5)
    outputs = []
    for t in range(x.shape[1]):
        h = m.cell(x[:, t], h)
        outputs.append(m.head(h))
    return torch.stack(outputs, dim=1)


@group({"h": Items(4, 0, 1)}, {"gates": "h+h+h+h 2+h"})
@net(gaussian((8, 4, 2)), gates=nn.Linear(2 + 4, 16), out=nn.Linear(4, 3))
def lstm_by_hand(m, x):
    """Gates without biases of their own, chunks of one matrix of input and state."""
    h = c = torch.zeros(x.size(0), 4, dtype=x.dtype)
    for step in x.unbind(1):
        i, f, g, o = m.gates(torch.cat((step, h), dim=1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return m.out(h)
