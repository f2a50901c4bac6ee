"""What memory normal forms take (slow)."""

import os
import subprocess
import sys

import pytest

CODE = """if True:
    import re, torch
    from pathlib import Path
    from torch import nn
    from nfn_monomial import normal_form

    def peak():
        return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

    def copies(call, size):
        before = peak()
        call()
        return (peak() - before) / size

    def made(width):
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True, norm_first=True)
        module = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        return module, torch.randn(1, 5, width)

    normal_form(*made(8))
    module, example = made(400)
    size = sum(8 * p.numel() for p in module.parameters())
    print(copies(lambda: normal_form(module, example), size))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_derivation_holds_a_few_copies_of_the_weights_in_float64() -> None:
    # What is freed goes back to the system.
    at_once = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=at_once)
    assert float(run.stdout) < 9, run.stdout
