"""Models beyond the paper, all invariant under the networks' whole group."""
