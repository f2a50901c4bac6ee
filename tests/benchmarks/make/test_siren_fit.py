"""Fitting SIRENs to images."""

import numpy as np
import pytest
import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.images import load_pictures
from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.make.siren_fit import FitConfig, fit_sirens, initialise, psnr

SIREN = Siren((2, 16, 16, 1), 30.0, (1, 8, 8))
SEEDS = [(0, image, 0) for image in range(5)]


@pytest.fixture(scope="module")
def pixels() -> Tensor:
    return load_pictures("digits").pixels[:5]


def test_psnr_is_minus_ten_times_the_logarithm_of_the_mean_squared_error() -> None:
    image = torch.rand(1, 3, 4, 5).expand(3, -1, -1, -1)
    error = torch.tensor([0.1, 0.01, 0.0]).view(3, 1, 1, 1)
    decibels = psnr(image + error, image)
    torch.testing.assert_close(decibels[:2], torch.tensor([20.0, 40.0]), atol=1e-3, rtol=0)
    assert decibels[2] == 300  # not infinite
    half = torch.cat([image[:1, :1] + 0.1, image[:1, 1:]], 1)  # one channel of three
    torch.testing.assert_close(psnr(half, image[:1]), torch.tensor([20 + 10 * np.log10(3)]).float())


def test_initialisation_is_that_of_sirens_and_of_each_network_alone() -> None:
    tensors = initialise(SIREN, SEEDS)
    assert {name: tuple(t.shape[1:]) for name, t in tensors.items()} == SIREN.space.shapes()
    bounds = {
        "weight.0": 1 / 2,
        "bias.0": 2**-0.5,
        "weight.1": (6 / 16) ** 0.5 / 30,
        "bias.1": 1 / 4,
        "weight.2": (6 / 16) ** 0.5 / 30,
        "bias.2": 1 / 4,
    }
    for name, bound in bounds.items():
        assert tensors[name].abs().max() <= bound
        assert (
            tensors[name].abs().max() > (0.5 if name == "bias.2" else 0.9) * bound
        )  # of five numbers, or of 80 and more
    alone = initialise(SIREN, SEEDS[3:4])
    for name, tensor in tensors.items():
        assert torch.equal(tensor[3], alone[name][0])
        assert len(tensor.flatten(1).unique(dim=0)) == len(SEEDS)


def test_fitting_lowers_the_error(pixels: Tensor) -> None:
    before = psnr(SIREN.render(initialise(SIREN, SEEDS)), pixels)
    short, long = (fit_sirens(SIREN, pixels, SEEDS, FitConfig(steps, 1e-3))["psnr"] for steps in (60, 300))
    assert (before < 15).all()
    assert (short > before + 3).all()
    assert (long > short + 3).all()
    assert (long > 30).all()


@pytest.mark.parametrize("parts", [1, 3])
def test_a_batch_of_fits_equals_fits_of_single_networks(pixels: Tensor, parts: int) -> None:
    config = FitConfig(30, 1e-3, parts)
    together = fit_sirens(SIREN, pixels, SEEDS, config)
    for i, seed in enumerate(SEEDS):
        alone = fit_sirens(SIREN, pixels[i : i + 1], [seed], config)
        for name, tensor in alone.items():
            torch.testing.assert_close(together[name][i : i + 1], tensor, rtol=1e-3, atol=1e-4)
    other = fit_sirens(SIREN, pixels[:1], [(1, 0, 0)], config)
    assert not torch.allclose(other["weight.0"], together["weight.0"][:1], atol=1e-2)


def test_all_parts_of_an_image_are_fitted(pixels: Tensor) -> None:
    """Were a part left out, its pixels would be as wrong as at the start."""
    fitted = fit_sirens(SIREN, pixels, SEEDS, FitConfig(300, 2e-3, parts=4))
    error = (SIREN.render(fitted) - pixels).flatten(1).abs()
    assert all(error[:, k::4].mean() < 0.05 for k in range(4))
