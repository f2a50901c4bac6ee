"""Networks of one's own: which symmetries they have, what two have in common, one moved next to another.

Each function is what the command of its name does: `symmetries`, `compare`, `align`, `balance`. Architectures and
checkpoints are named as on the command line; in Python ``net=define(module, example_inputs)`` takes a module that is
there.
"""

from nfn_monomial.benchmarks.data.definitions import define, read_definition

from .alignments import align
from .balancing import balance
from .comparison import compare
from .inspection import symmetries

__all__ = ["align", "balance", "compare", "define", "read_definition", "symmetries"]
