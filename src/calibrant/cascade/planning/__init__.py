"""Cascade planning from recorded runs: candidates, choice, guarantee and replayed cost."""
