"""Fake models that are opened by name, like any other model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

from calibrant.core import Client, ConfigurationError

__all__ = ["PREFIX", "fake_model", "open_fake_model"]

PREFIX = "fake/"

Opener: TypeAlias = Callable[..., Client]
_openers: dict[str, Opener] = {}


@contextlib.contextmanager
def fake_model(name: str, model: Client | Opener) -> Iterator[str]:
    """Let a model's name open a fake until the block ends.

    The name works wherever a model is named: in task files, bundles, `Classifier` and on the command line.

    Parameters
    ----------
    name : str
        ``fake/`` followed by anything.
    model : Client or callable
        What the name opens: a client, the same one each time, or a function that is called with the name and the
        keyword arguments of `calibrant.inference.open_client` (``space``, ``concurrency``, ``options``,
        ``scoring``) and returns a client.

    Yields
    ------
    str
        The name.

    Raises
    ------
    ConfigurationError
        The name does not begin with ``fake/``.

    Examples
    --------
    >>> from calibrant import Classifier
    >>> from calibrant.testing import FakeClient, fake_model
    >>> with fake_model("fake/animals", FakeClient(["cat", "dog"], {"meow": ("cat", 0.9)})) as name:
    ...     print(Classifier(model=name, labels=["cat", "dog"], field="category").classify("meow").label)
    cat
    """
    if not name.startswith(PREFIX) or name == PREFIX:
        raise ConfigurationError(f"Expected the name of a fake model, {PREFIX}NAME, got {name!r}.")
    before = _openers.get(name)
    _openers[name] = (lambda *_, **__: model) if isinstance(model, Client) else model
    try:
        yield name
    finally:
        if before is None:
            _openers.pop(name, None)
        else:
            _openers[name] = before


def open_fake_model(name: str, **settings: object) -> Client:
    """Return the client that a fake model's name opens now.

    Raises
    ------
    ConfigurationError
        No `fake_model` block of this process gives the name a client.
    """
    if name not in _openers:
        raise ConfigurationError(
            f"Expected a fake model that a block of calibrant.testing.fake_model names, got {name!r}; "
            f"there are: {', '.join(sorted(_openers)) or 'none'}."
        )
    return _openers[name](name, **settings)
