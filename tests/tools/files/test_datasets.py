"""Networks as a data set of torch."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch_geometric.data import Batch

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.modules import stack_networks
from nfn_monomial.adapters.pyg import from_graph, to_graph, to_graphs
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.networks import StateDicts


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


SPACE = WeightSpace.from_module(network(), torch.randn(2, 3))
MODULES = [network() for _ in range(6)]
STATES = [module.state_dict() for module in MODULES]
STACKED = stack_networks(MODULES, SPACE)


def test_batches_are_what_models_read(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.{'pt' if i % 2 else 'safetensors'}" for i in range(6)]
    for path, state in zip(paths, STATES, strict=True):
        (torch.save if path.suffix == ".pt" else safetensors.torch.save_file)(state, path)
    targets = torch.arange(6.0)
    for networks in (STATES, MODULES, paths, list(map(str, paths))):
        batches = list(DataLoader(StateDicts(networks, SPACE, targets), batch_size=4))
        assert torch.equal(torch.cat([t for _, t in batches]), targets)
        for name, tensor in STACKED.items():
            assert torch.equal(torch.cat([tensors[name] for tensors, _ in batches]), tensor)
    SPACE.pack(batches[0][0])


def test_files_may_have_a_prefix(tmp_path: Path) -> None:
    for i, prefix in enumerate(("module.", "model.net.")):
        torch.save({"state_dict": {f"{prefix}{key}": t for key, t in STATES[i].items()}}, tmp_path / "net.pth.tar")
        found, _ = StateDicts([tmp_path / "net.pth.tar"], SPACE, [0], key="state_dict")[0]
        assert all(torch.equal(found[name], tensor[i]) for name, tensor in STACKED.items())


def test_errors_name_the_network(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="6 networks and 2 targets"):
        StateDicts(STATES, SPACE, [1, 2])
    torch.save(nn.Linear(3, 4).state_dict(), tmp_path / "other.pt")
    with pytest.raises(InvalidValueError, match=r"other\.pt: .*the keys of the state dict do not fit"):
        StateDicts([tmp_path / "other.pt"], SPACE, [0])[0]


def test_a_state_dict_is_a_graph() -> None:
    graph = to_graph(STATES[0], SPACE)
    one = {name: t[:1] for name, t in STACKED.items()}
    assert isinstance(graph, Batch)
    assert torch.equal(graph.x, to_graph(one, SPACE).x)
    assert torch.equal(graph.edge_attr, to_graph(one, SPACE).edge_attr)
    several = to_graphs([(state, SPACE) for state in STATES])
    for name, tensor in from_graph(several, SPACE).items():
        assert torch.equal(tensor, STACKED[name])
