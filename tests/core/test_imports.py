"""What a program waits for: importing the core brings torch, and nothing else that is large."""

import subprocess
import sys

LARGE = {"matplotlib", "pandas", "rich", "scipy", "sklearn", "sympy", "torch._dynamo", "torch._inductor"}
ALL = "import nfn_monomial; [getattr(nfn_monomial, name) for name in nfn_monomial.__all__]"
WORKING = f"""{ALL}; import torch
space = nfn_monomial.WeightSpace.mlp([2, 3, 1], "relu")
state = {{name: torch.ones(shape) for name, shape in space.shapes().items()}}
nfn_monomial.compare(space, state, state)
nfn_monomial.balance({{name: t[None, None] for name, t in state.items()}}, space)
"""


def imported(code: str) -> set[str]:
    """The modules that are there after some code, in a process of its own."""
    said = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(said.stdout.split())


def test_the_name_alone_brings_nothing() -> None:
    assert "torch" not in imported("import nfn_monomial")


def test_the_core_brings_torch_alone() -> None:
    own = imported(ALL)
    assert "torch" in own
    assert "nfn_monomial.models" in own
    more = {name.split(".")[0] for name in own - imported("import torch")}
    outside = more - set(sys.stdlib_module_names) - {"nfn_monomial"}
    assert not outside
    assert not own & LARGE


def test_to_balance_and_to_compare_needs_no_compiler() -> None:
    compilers = {"torch._dynamo", "torch._inductor", "sympy"}
    assert not imported(WORKING) & compilers
