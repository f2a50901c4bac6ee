"""Networks on disk and many at once: files that are read without running code, and values that no batch takes."""

import math
import re

import pytest
import safetensors.torch
import torch
from modules_of_torch import SPACE, siren, states

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.modules import (
    load_checkpoint,
    load_safetensors,
    save_safetensors,
    stack_networks,
    unstack_networks,
)
from nfn_monomial.testing import random_networks

# -- values -----------------------------------------------------------------------------------------------------------


def test_networks_that_do_not_go_into_one_batch():
    good = siren().state_dict()
    with pytest.raises(ValueError, match=r"network 1: 0\.weight has shape \(6, 2\) but in network 0 it is \(5, 2\)"):
        stack_networks([good, siren(6)], SPACE)
    with pytest.raises(
        TypeError, match=r"network 2: 0\.weight is torch\.float64 on cpu but in network 0 it is torch\.floa"
    ):
        stack_networks([good, good, siren().double()], SPACE)
    with pytest.raises(TypeError, match=r"network 0: .* has dtype torch\.int32; floating point is expected"):
        stack_networks([{key: t.int() for key, t in good.items()}], SPACE)
    with pytest.raises(TypeError, match="network 1: it is a list; a module or a state dict is expected"):
        stack_networks([good, [1.0]], SPACE)
    with pytest.raises(ValueError, match="no networks given"):
        stack_networks([], SPACE)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_networks_that_diverged(bad):
    networks = states(SPACE, 3)
    networks[1]["bias.2"][0] = bad
    with pytest.raises(ValueError, match=r"network 1: bias\.2 holds NaN or infinite values"):
        stack_networks(networks, SPACE)


def test_unstack_takes_networks_only():
    with pytest.raises(ValueError, match=r"weight\.0 has 2 channels; a network has one"):
        unstack_networks(random_networks(SPACE, 3, 2), SPACE)
    with pytest.raises(ValueError, match="missing: bias"):
        unstack_networks({"weight.0": torch.zeros(1, 1, 5, 2)}, SPACE)


# -- files ------------------------------------------------------------------------------------------------------------


def test_safetensors_round_trip(tmp_path):
    networks = [siren().double() for _ in range(3)]
    space = WeightSpace.from_module(networks[0], torch.zeros(2, 2, dtype=torch.float64))
    tensors = stack_networks(networks, space)
    paths = [tmp_path / "new" / str(i) / "model.safetensors" for i in range(3)]
    save_safetensors(tensors, paths, space)
    assert [p.name for p in (tmp_path / "new" / "0").iterdir()] == ["model.safetensors"]
    loaded = load_safetensors(paths, space)
    assert all(torch.equal(loaded[name], tensors[name]) and loaded[name].dtype == torch.float64 for name in tensors)
    networks[1].load_state_dict(safetensors.torch.load_file(paths[0]))
    assert torch.equal(networks[1][0].weight, networks[0][0].weight)
    renamed = {name: f"net.{i}" for i, name in enumerate(space.parameters)}
    save_safetensors({name: t[:1] for name, t in tensors.items()}, str(paths[0]), space, names=renamed)
    assert set(safetensors.torch.load_file(paths[0])) == set(renamed.values())
    assert torch.equal(load_safetensors(str(paths[0]), space, names=renamed)["0.bias"], tensors["0.bias"][:1])


def test_safetensors_of_other_names_in_one_batch(tmp_path):
    network = siren()
    safetensors.torch.save_file(network.state_dict(), tmp_path / "a.safetensors")
    other = {f"net.{key}": t for key, t in network.state_dict().items()} | {"steps": torch.zeros(1)}
    safetensors.torch.save_file(other, tmp_path / "b.safetensors")
    loaded = load_safetensors(sorted(tmp_path.iterdir()), SPACE, ignore=("steps",))
    assert all(torch.equal(t[0], t[1]) for t in loaded.values())


def test_safetensors_that_cannot_be_read(tmp_path):
    good, cut, junk = (tmp_path / name for name in ("good.safetensors", "cut.safetensors", "junk.safetensors"))
    safetensors.torch.save_file(siren().state_dict(), good)
    cut.write_bytes(good.read_bytes()[:-10])
    junk.write_bytes(b"junk")
    for bad in (cut, junk):
        with pytest.raises(ValueError, match=f"{re.escape(str(bad))} is damaged or of another kind"):
            load_safetensors([good, bad], SPACE)
    for absent in (tmp_path / "absent.safetensors", tmp_path):
        with pytest.raises(FileNotFoundError, match=f"{re.escape(str(absent))}: no such file"):
            load_safetensors([good, absent], SPACE)
    safetensors.torch.save_file(siren(7).state_dict(), junk)
    with pytest.raises(ValueError, match=r"junk\.safetensors: 0\.weight has shape \(7, 2\) but in .*good\.safetensors"):
        load_safetensors([good, junk], SPACE)


def test_nothing_half_written_is_left(tmp_path, monkeypatch):
    tensors = stack_networks([siren(), siren()], SPACE)
    with pytest.raises(ValueError, match="2 networks need as many different paths; 1 of 1 given"):
        save_safetensors(tensors, [tmp_path / "a"], SPACE)
    with pytest.raises(ValueError, match="1 of 2 given"):
        save_safetensors(tensors, [tmp_path / "a"] * 2, SPACE)
    tensors["bias.0"][1] = math.nan
    with pytest.raises(ValueError, match=r"bias\.0 holds"):
        save_safetensors(tensors, [tmp_path / "a", tmp_path / "b"], SPACE)

    def interrupted(state, path, metadata):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    network = stack_networks([siren()], SPACE)
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save_safetensors(network, tmp_path / "a", SPACE)
    assert list(tmp_path.iterdir()) == []


def test_checkpoints(tmp_path):
    network, path = siren(), tmp_path / "model.pth"
    torch.save(network.state_dict(), path)
    assert all(torch.equal(t, network.state_dict()[key]) for key, t in load_checkpoint(path).items())
    torch.save({"model": network.state_dict(), "epoch": 3}, path)
    assert list(load_checkpoint(path, key="model")) == list(network.state_dict())
    with pytest.raises(
        ValueError, match=r"model\.pth holds entries that are no tensors: 'model' \(OrderedDict\), 'epoch'"
    ):
        load_checkpoint(path)
    with pytest.raises(ValueError, match=r"has no entry 'state'; it holds 'model' .*, 'epoch'"):
        load_checkpoint(path, key="state")
    torch.save(network.state_dict() | {"label": 7}, path)
    tensors = stack_networks([load_checkpoint(path, ignore=("label",))], SPACE)
    assert torch.equal(tensors["weight.3"][0, 0], network[6].weight)
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match=r"model\.pth holds a list, no state dict"):
        load_checkpoint(path)
    with pytest.raises(ValueError, match=r"has no entry 'model'; it holds list"):
        load_checkpoint(path, key="model")
