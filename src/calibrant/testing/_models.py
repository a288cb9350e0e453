"""Fake models that are opened by name, like any other model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from calibrant.core._completion import STAND_INS, Client, Opener
from calibrant.core._errors import ConfigurationError


@contextlib.contextmanager
def fake_model(name: str, model: Client | Opener) -> Iterator[str]:
    """Let a model's name open a fake until the block ends.

    The name works wherever a model is named: in task files, bundles, `Classifier` and on the command line.
    A program that is started in the block knows nothing of it.

    Parameters
    ----------
    name : str
        ``fake/NAME``, which nothing else answers, or the name of a real model, which the fake replaces: a task
        file that names ``openai/gpt-4.1-mini`` can be tested as it stands.
    model : Client or callable
        What the name opens: a client, the same one each time, or a function that is called with the name and
        the keyword arguments of `calibrant.inference.open_client` (``space``, ``concurrency``, ``options``,
        ``scoring``) and returns a client.

    Yields
    ------
    str
        The name.

    Raises
    ------
    ConfigurationError
        The name is empty.

    Examples
    --------
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient, fake_model
    >>> with fake_model("fake/animals", FakeClient(["cat", "dog"], {"meow": ("cat", 0.9)})) as name:
    ...     print(Classifier(model=name, labels=["cat", "dog"], field="category").classify("meow").label)
    cat
    """
    if not name.strip():
        raise ConfigurationError(
            f"Expected the name that is to open the fake, such as fake/model, got {name!r}."
        )
    before = STAND_INS.get(name)
    STAND_INS[name] = (lambda *_, **__: model) if isinstance(model, Client) else model
    try:
        yield name
    finally:
        if before is None:
            STAND_INS.pop(name, None)
        else:
            STAND_INS[name] = before
