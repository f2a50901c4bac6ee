"""What a program waits for: importing the core brings torch, and nothing else that is large."""

import subprocess
import sys

LARGE = {"matplotlib", "pandas", "rich", "scipy", "sklearn", "sympy", "torch._dynamo", "torch._inductor"}
STEPS = """import sys
def step():
    print(*sys.modules)
import nfn_monomial; step()
import torch; step()
import nfn_monomial.testing; [getattr(nfn_monomial, name) for name in nfn_monomial.__all__]; step()
space = nfn_monomial.WeightSpace.mlp([2, 3, 1], "relu")
state = {name: torch.ones(shape) for name, shape in space.shapes().items()}
nfn_monomial.compare(space, state, state)
nfn_monomial.balance({name: t[None, None] for name, t in state.items()}, space); step()
"""


def test_what_is_imported_when() -> None:
    """By the name alone nothing; by all names torch; to balance and to compare no compiler."""
    said = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    name, torch, everything, working = (set(line.split()) for line in said.stdout.splitlines())
    assert "torch" not in name
    assert "nfn_monomial.models" in everything
    outside = {module.split(".")[0] for module in everything - torch - name} - set(sys.stdlib_module_names)
    assert outside <= {"nfn_monomial"}
    assert not everything & LARGE
    assert not working & {"torch._dynamo", "torch._inductor", "sympy"}
