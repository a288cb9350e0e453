"""Clients of models behind one interface: one request in, one response out, every failure a `ProviderError`."""
