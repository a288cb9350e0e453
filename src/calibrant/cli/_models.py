"""``calibrant models`` and ``calibrant doctor``: the models that can be named, and one of them examined."""

from __future__ import annotations

from dataclasses import asdict

from calibrant.cli._tables import print_output
from calibrant.clients._weights import local_models, name_forms

_EMBEDDED = "embedded, no key needed"


def models(*, as_json: bool = False) -> None:
    """Print the embedded models with their state, then the other forms of names.

    Parameters
    ----------
    as_json
        Print one JSON array: an object per model and per form of name.
    """
    known, forms = local_models(), name_forms()
    records = [
        {**asdict(model), "path": str(model.path or ""), "pattern": False, "description": _EMBEDDED}
        for model in known
    ]
    patterns = [
        {"name": form.name, "pattern": True, "description": form.description, "needs": form.needs}
        for form in forms
    ]
    # Plain lines, never wrapped: the commands are there to be copied.
    lines: list[str] = []
    for model in known:
        state = f"ready: {model.path}" if model.installed else f"missing, run: {model.install_command}"
        lines += [model.name, f"    {_EMBEDDED}", f"    {state}"]
    for form in forms:
        state = f"needs: {form.needs}" if form.needs else f"ready: {form.ready}"
        lines += [form.name, f"    {form.description}", f"    {state}"]
    print_output(records + patterns, lines, as_json=as_json)


def doctor(
    model: str,
    *,
    api_base: str | None = None,
    option: list[str] | None = None,
    space: str | None = None,
    as_json: bool = False,
    no_save: bool = False,
) -> None:
    """Examine a model; see `run_doctor`.

    Parameters
    ----------
    model : MODEL
        The model's name; see `calibrant models`.
    space
        masked or raw: what the setup takes the log-probabilities for.
    no_save
        Store nothing that later commands would consult.
    """
    from calibrant.cli._doctor import run_doctor  # loads the examination, which listing models does not need

    run_doctor(model, api_base=api_base, options=option or [], space=space, as_json=as_json, save=not no_save)
