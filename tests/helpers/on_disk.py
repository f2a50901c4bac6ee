"""Rows that are not in memory, as tests see them."""

from torch import Tensor

from nfn_monomial.benchmarks.data.rows import Rows


class OnDisk(Rows):
    """Rows that are read when asked for; ``most``: the largest request."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.most = rows, 0

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: Tensor) -> dict[str, Tensor]:
        self.most = max(self.most, len(index))
        return self.rows.read(index)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.rows.shapes
