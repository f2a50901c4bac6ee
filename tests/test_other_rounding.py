"""The check of rounding rounds: products sum in another order, and do so only for as long as it is asked for."""

import other_rounding
import pytest
import torch


def products(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    layer = torch.nn.functional.linear(a, b.T, b[0])
    return [
        a @ b,
        a @ b[:, 0],
        a[0] @ b[:, 0],
        layer,
        torch.einsum("nij,njk->nik", a.expand(2, -1, -1), b.expand(2, -1, -1)),
    ]


def test_products_are_summed_in_another_order() -> None:
    generator = torch.Generator().manual_seed(0)
    real = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((30, 40), (40, 20))]
    whole = [(10 * t).round() for t in real]
    before, exact = products(*real), products(*whole)
    library = other_rounding.install("test")
    try:
        found, again = products(*real), products(*real)
        assert all(map(torch.equal, found, again)), "the same product is the same twice"
        # No order changes sums of whole numbers.
        torch.testing.assert_close(products(*whole), exact, rtol=1e-14, atol=1e-11)
        alone = real[0][:1] @ real[1]
    finally:
        library._destroy()
    torch.testing.assert_close(found, before, rtol=1e-12, atol=1e-12)
    changed = [not torch.equal(x, y) for x, y in zip(found, before, strict=True) if x.ndim]
    assert all(changed)
    assert not torch.equal(alone, found[0][:1]), "batches of other sizes round otherwise"
    assert all(map(torch.equal, products(*real), before))


def test_shapes_that_do_not_fit_are_an_error_as_ever() -> None:
    library = other_rounding.install("test")
    try:
        with pytest.raises(RuntimeError):
            torch.ones(3, 5) @ torch.ones(6, 2)
    finally:
        library._destroy()
