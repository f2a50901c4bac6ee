"""nfn and plain-torch networks in and out of the core; installed as ``nfn_monomial.adapters``."""
