"""Features as a container: picking networks, products that keep equivariance, files, and what torch sees of them."""

import io
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces, any_spaces
from torch.utils import _pytree as pytree

from nfn_monomial import WeightSpace
from nfn_monomial.space.as_pytree import layout_from_json, layout_to_json
from nfn_monomial.testing import assert_equivariant, random_networks

SPACE = WeightSpace.mlp([2, 4, 3, 1], "relu")


def features(batch=5, space=SPACE):
    return space.pack(random_networks(space, batch, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(
    "index", [1, -4, torch.tensor(1), np.int64(1), np.array(1), torch.tensor([1]), [1], slice(1, 2)]
)
def test_one_network_is_a_batch_of_one(index):
    x = features()
    assert [t.shape[0] for t in x[index].tensors] == [1] * len(x.layout)
    assert all(torch.equal(a, b[1:2]) for a, b in zip(x[index].tensors, x.tensors, strict=True))


@pytest.mark.parametrize("index", [5, 7, -6, torch.tensor(5), np.int64(-6), torch.tensor([0, 5])])
def test_networks_that_are_not_there_are_an_index_error(index):
    with pytest.raises(IndexError):
        features()[index]


@pytest.mark.parametrize("index", [None, (0, 1), (slice(1, 2), 0), ..., torch.tensor([[0, 1]]), [[0], [1]]], ids=str)
def test_only_networks_are_picked(index):
    """Another dimension would pick neurons, or make a new one."""
    with pytest.raises(IndexError, match="networks are picked by number, slice, mask or list of numbers"):
        features()[index]


def test_masks_and_slices():
    x = features()
    mask = torch.tensor([True, False, True, False, False])
    for index, wanted in ((mask, [0, 2]), (mask.numpy(), [0, 2]), (slice(None, None, 2), [0, 2, 4]), ([3, 0], [3, 0])):
        assert torch.equal(x[index].tensors[1], x.tensors[1][wanted])
    assert len(x[7:]) == 0


@given(any_spaces(), st.sampled_from([2.0, 3, True, np.float64(0.5), torch.tensor(-2.0)]))
def test_numbers_keep_equivariance(space, factor):
    x = features(3, space)
    assert_equivariant(lambda z: z * factor, space, inputs=x, trials=1)
    assert all(torch.equal(a, b * factor) for a, b in zip((factor * x if type(factor) is float else x * factor).tensors,
                                                          x.tensors, strict=True))  # fmt: skip


def test_a_number_for_each_network():
    """Batch of 4 on 4 neurons: what could be either is networks."""
    x, weights = features(4), torch.arange(1.0, 5.0, dtype=torch.float64)
    for i, moved in enumerate((x * weights)[n] for n in range(4)):
        assert all(torch.equal(a, b * (i + 1)) for a, b in zip(moved.tensors, x[i].tensors, strict=True))
    assert_equivariant(lambda z: z * weights, SPACE, inputs=x)


@pytest.mark.parametrize("shape", [(4, 1), (5, 1, 1), (1,), (3,), (5, 4, 1), (1, 1)])
def test_other_tensors_are_refused(shape):
    """Along neurons a product is not equivariant, and fields have different dimensions."""
    with pytest.raises(ValueError, match=r"is not equivariant; multiply by a number, .* shape \(5,\)"):
        features() * torch.arange(float(np.prod(shape))).reshape(shape)


def test_torch_names_fields():
    keys = [pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path({"networks": features()})]
    assert keys == [f"['networks']['{field}']" for field in ("h1^+1", "h2^+1 h1^-1", "h2^+1", "h2^-1", "const")]


@given(all_spaces())
def test_layouts_and_features_are_what_is_read_back(space):
    assert layout_from_json(json.loads(json.dumps(layout_to_json(space.layout)))) is space.layout
    x, file = features(2, space), io.BytesIO()
    torch.save({"networks": x}, file)
    file.seek(0)
    read = torch.load(file, weights_only=True)["networks"]
    assert read.layout is x.layout
    assert all(map(torch.equal, read.tensors, x.tensors))
