"""Values of a traced program: what their dimensions run over, how they are acted on, and what operations do to both."""
