"""Sealed files: what is written is what is read, whatever memory tensors have."""

from pathlib import Path

import torch
from torch import nn

from nfn_monomial.tools.files.sealed import read_sealed, seal


def test_a_layer_that_a_model_has_twice_is_written_twice(tmp_path: Path) -> None:
    block = nn.Linear(3, 3)
    state = nn.Sequential(block, nn.ReLU(), block).state_dict() | {"part": block.weight[:2]}
    (tmp_path / "a.safetensors").write_bytes(seal(state, {"of": "both"}))
    read, stated = read_sealed(tmp_path / "a.safetensors")
    assert stated == {"of": "both"}
    assert read.keys() == state.keys()
    assert all(torch.equal(t, read[name]) for name, t in state.items())
