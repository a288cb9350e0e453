"""Cascade planning from recorded runs: candidate policies, certificates and replayed costs."""
