"""The command ``nfn-monomial`` as ``python -m nfn_monomial.benchmarks``, which is how torchrun starts it."""

from nfn_monomial.tools.__main__ import main

if __name__ == "__main__":
    main()
