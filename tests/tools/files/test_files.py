"""Networks on disk: files that are read without running code, what is no regular file, or says more than it has."""

import math
import os
import re
import zipfile
from collections import OrderedDict
from typing import Any

import pytest
import safetensors.torch
import torch
from modules_of_torch import SPACE, siren

from nfn_monomial import MonomialError, WeightSpace
from nfn_monomial.adapters.modules import stack_networks
from nfn_monomial.checks import shown
from nfn_monomial.tools.files.networks import load_checkpoint, load_safetensors, save_safetensors
from nfn_monomial.tools.files.tensors import read_safetensors, read_torch_file
from nfn_monomial.tools.files.untrusted import read_bytes, require_regular


def test_safetensors_round_trip(tmp_path):
    networks = [siren().double() for _ in range(3)]
    space = WeightSpace.from_module(networks[0], torch.zeros(2, 2, dtype=torch.float64))
    tensors = stack_networks(networks, space)
    paths = [tmp_path / "new" / str(i) / "model.safetensors" for i in range(3)]
    save_safetensors(tensors, paths, space)
    assert [p.name for p in (tmp_path / "new" / "0").iterdir()] == ["model.safetensors"]
    loaded = load_safetensors(paths, space)
    assert all(torch.equal(loaded[name], tensors[name]) and loaded[name].dtype == torch.float64 for name in tensors)
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
    safetensors.torch.save_file(siren(7).state_dict(), junk)
    with pytest.raises(ValueError, match=r"junk\.safetensors: 0\.weight has shape \(7, 2\) but in .*good\.safetensors"):
        load_safetensors([good, junk], SPACE)
    float8 = {key: t.to(torch.float8_e4m3fn) for key, t in siren().state_dict().items()}
    safetensors.torch.save_file(float8, junk)
    with pytest.raises(MonomialError, match=r"0\.weight has dtype torch\.float8"):
        load_safetensors(junk, SPACE)


def test_nothing_half_written_is_left(tmp_path, monkeypatch):
    tensors = stack_networks([siren(), siren()], SPACE)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for paths, count in ((["a"], "1 of 1"), (["a", "../" + tmp_path.name + "/a"], "1 of 2"), (["a", "b"], "1 of 2")):
        with pytest.raises(ValueError, match=f"2 networks need as many different paths; {count} given"):
            save_safetensors(tensors, [tmp_path / name for name in paths], SPACE)
    tensors["bias.0"][1] = math.nan
    with pytest.raises(ValueError, match=r"bias\.0 holds"):
        save_safetensors(tensors, [tmp_path / "a", tmp_path / "c"], SPACE)

    def interrupted(state, path, metadata):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    network = stack_networks([siren()], SPACE)
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save_safetensors(network, tmp_path / "a", SPACE)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_checkpoints(tmp_path):
    network, path = siren(), tmp_path / "model.pth"
    torch.save({"model": network.state_dict() | {"label": 7}, "epoch": 3}, path)
    state = load_checkpoint(path, key="model", ignore=("label",))
    assert all(torch.equal(t, network.state_dict()[key]) for key, t in state.items())
    for options, message in (
        ({}, r"model\.pth holds entries that are no tensors: 'model' \(OrderedDict\), 'epoch'"),
        ({"key": "state"}, r"has no entry 'state'; it holds 'model' .*, 'epoch'"),
        ({"key": "epoch"}, r"model\.pth holds a int, no state dict"),
    ):
        with pytest.raises(ValueError, match=message):
            load_checkpoint(path, **options)
    torch.save({"0.bias": torch.ones(2), "b": torch.ones(1)}, path)
    assert list(load_checkpoint(path, ignore="0.bias")) == ["b"]  # one text is one key


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.eye(3).to_sparse(), "sparse"), (torch.ones(3, device="meta"), "meta"),
        (torch.zeros(1).expand(2**20, 2**11), "a tensor of shape"),
        (torch.ones(2, dtype=torch.cfloat).conj(), "resolve_conj"),
        (torch.zeros(4, dtype=torch.uint8).view(torch.bits8), "of type <torch.bits8"),
    ],
)  # fmt: skip
def test_other_tensors_are_refused(tensor, what, tmp_path):
    torch.save({"weight": tensor}, tmp_path / "a.pt")
    with pytest.raises(MonomialError, match=f"a.pt .*{what}"):
        load_checkpoint(tmp_path / "a.pt")


def test_an_archive_that_expands_is_refused(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"weight": torch.zeros(2**20)}, path)
    with zipfile.ZipFile(path) as archive:
        parts = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    assert path.stat().st_size < 10_000
    with pytest.raises(MonomialError, match="it is compressed"):
        load_checkpoint(path)


def test_flipped_bits_of_an_archive_are_found(tmp_path):
    state, path = {"weight": torch.randn(4, 3)}, tmp_path / "a.pt"
    torch.save(state, path)
    data = path.read_bytes()
    for place in range(0, len(data), 13):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        try:
            found = load_checkpoint(path)
        except MonomialError:
            continue
        assert torch.equal(found["weight"], state["weight"])


@pytest.mark.parametrize("read", [require_regular, read_bytes, read_torch_file, read_safetensors, load_checkpoint])
def test_only_regular_files_are_opened(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    kinds = {"pipe": "a device or a pipe", "device": "a device or a pipe", "loop": "", ".": "a folder", "absent": ""}
    for name, what in kinds.items():
        with pytest.raises(FileNotFoundError, match=f"no such file.*{what}") as caught:
            read(tmp_path / name)
        assert isinstance(caught.value, MonomialError)


def test_values_of_any_size_are_shown_in_short():
    twice: Any = OrderedDict(a=1)
    for _ in range(60):  # in full it has 2**60 parts
        twice = OrderedDict(a=twice, b=twice)
    for value in (twice, torch.Size([2] * 10_000), {"a": twice}, (twice,), [bytearray(10**7)], "x" * 10**6):
        assert len(shown(value)) < 1000
