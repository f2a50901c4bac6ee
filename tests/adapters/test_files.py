"""Files of strangers: what is no regular file, says more than it has, or asks for code."""

import os
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from nfn_monomial import MonomialError, WeightSpace
from nfn_monomial.adapters.files import require_regular, shown
from nfn_monomial.adapters.modules import load_checkpoint, load_safetensors, save_safetensors
from nfn_monomial.adapters.tensor_files import read_safetensors, read_torch_file, require_numbers
from nfn_monomial.tools.reading import read_bytes


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).state_dict(),
        {"a": [1, -(2**40), 2.5, None, True, "text", b"bytes", (1, 2)], "size": torch.Size((1, 2)), "set": {1}},
        {"half": torch.ones(3).half(), "int": torch.arange(4), "scalar": torch.tensor(2.0), "none": torch.zeros(0, 3)},
        {"view": torch.arange(12.0).view(3, 4).T[1:], "b": torch.ones(1) > 0},
        nn.Parameter(torch.ones(2)),
    ],
)  # fmt: skip
def test_torch_files_are_read_as_torch_reads_them(content: Any, legacy: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    found, expected = read_torch_file(path), torch.load(path, weights_only=True)
    assert type(found) is type(expected)
    assert _plain(found) == _plain(expected)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return type(value), value.dtype, value.stride(), value.requires_grad, value.double().tolist()
    if isinstance(value, dict):
        return [(key, _plain(inner)) for key, inner in value.items()], getattr(value, "_metadata", None)
    return [type(value), value]


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.eye(3).to_sparse(), "sparse"), (torch.ones(3, device="meta"), "meta"),
        (torch.zeros(1).expand(2**20, 2**11), "a tensor of shape"),
        (torch.ones(2, dtype=torch.cfloat).conj(), "resolve_conj"),
        (torch.zeros(4, dtype=torch.uint8).view(torch.bits8), "of type <torch.bits8"),
    ],
)  # fmt: skip
def test_other_tensors_are_refused(tensor: Tensor, what: str, tmp_path: Path) -> None:
    torch.save({"weight": tensor}, tmp_path / "a.pt")
    with pytest.raises(MonomialError, match=f"a.pt .*{what}"):
        load_checkpoint(tmp_path / "a.pt")


@pytest.mark.parametrize("kind", [torch.eye(3).to_sparse(), torch.ones(3, device="meta"), torch.ones(3).int(), 5.0])
def test_numbers_are_asked_for(kind: Any) -> None:
    with pytest.raises(MonomialError, match=r"weight .*expected"):
        require_numbers(kind, "weight")


def test_float8_is_named_where_networks_are_stacked(tmp_path: Path) -> None:
    space = WeightSpace.mlp([2, 1], "relu")
    state = {"weight.0": torch.ones(1, 2).to(torch.float8_e4m3fn), "bias.0": torch.ones(1)}
    path = tmp_path / "a.safetensors"

    safetensors.torch.save_file(state, path)
    with pytest.raises(MonomialError, match=r"weight\.0 has dtype torch\.float8"):
        load_safetensors(path, space)


def test_an_archive_that_expands_is_refused(tmp_path: Path) -> None:
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


def test_every_flipped_bit_of_an_archive_is_found(tmp_path: Path) -> None:
    state = {"weight": torch.randn(4, 3)}
    path = tmp_path / "a.pt"
    torch.save(state, path)
    data = path.read_bytes()
    for place in range(0, len(data), 3):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        try:
            found = load_checkpoint(path)
        except MonomialError:
            continue
        assert torch.equal(found["weight"], state["weight"])


@pytest.mark.parametrize("read", [require_regular, read_bytes, read_torch_file, read_safetensors, load_checkpoint])
def test_only_regular_files_are_opened(read: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    kinds = {"pipe": "a device or a pipe", "device": "a device or a pipe", "loop": "", ".": "a folder"}
    for name, what in kinds.items():
        with pytest.raises(FileNotFoundError, match=f"no such file.*{what}") as caught:
            read(tmp_path / name)
        assert isinstance(caught.value, MonomialError)


def test_two_paths_of_one_file_are_noticed(tmp_path: Path) -> None:
    space = WeightSpace.mlp([2, 1], "relu")
    tensors = {name: torch.ones(2, 1, *shape) for name, shape in space.shapes().items()}
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for paths in (["a", "../" + tmp_path.name + "/a"], ["a", "b"]):
        with pytest.raises(MonomialError, match="as many different paths; 1 of 2 given"):
            save_safetensors(tensors, [tmp_path / name for name in paths], space)


def test_one_text_is_one_key_to_ignore(tmp_path: Path) -> None:
    torch.save({"0.bias": torch.ones(2), "b": torch.ones(1)}, tmp_path / "a.pt")
    assert list(load_checkpoint(tmp_path / "a.pt", ignore="0.bias")) == ["b"]


def test_values_of_any_size_are_shown_in_short() -> None:
    twice: Any = OrderedDict(a=1)
    for _ in range(60):  # in full it has 2**60 parts
        twice = OrderedDict(a=twice, b=twice)
    for value in (twice, torch.Size([2] * 10_000), {"a": twice}, (twice,), [bytearray(10**7)], "x" * 10**6):
        assert len(shown(value)) < 1000
