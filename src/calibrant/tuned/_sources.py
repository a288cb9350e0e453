"""Sources of classifiers: task files, bundles and runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from calibrant.assembly._sections import open_classifier
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._prediction import Journal
from calibrant.core._predictor import Limits
from calibrant.core._task import Task
from calibrant.inference._base import BasePredictor
from calibrant.inference._models import ModelLike
from calibrant.runs._directory import BATCH, MANIFEST, PREDICTIONS, RESULT
from calibrant.tuned._task_record import BUNDLE

if TYPE_CHECKING:
    from calibrant.heads._tuned import Tuned

_MOST_NAMES: Final = 5  # in a message
SourceKind: TypeAlias = Literal["task file", "bundle", "run"]


def kind_of_source(path: str | Path) -> SourceKind:
    """Return the kind of what a command was given.

    Raises
    ------
    StateError
        It is none of the three.
    """
    # These say no to paths that cannot be looked up, such as too long ones.
    place = Path(path)
    if os.path.isfile(place):  # noqa: PTH113
        return "task file"
    if os.path.exists(place / BUNDLE):  # noqa: PTH110
        return "bundle"
    if any(os.path.exists(place / name) for name in (MANIFEST, RESULT, BATCH, PREDICTIONS)):  # noqa: PTH110
        return "run"
    raise StateError(
        f"{place}: expected a task file, a bundle or the directory of a run, got {_what_is_there(place)}."
    )


def read_source(path: str | Path) -> Task | Tuned:
    """Read a task file, a bundle or the directory of a run, without opening a model or reading rows.

    Returns
    -------
    Task or Tuned
        The task of a file, without rows; a bundle or a run as a tuned classifier.

    Raises
    ------
    ConfigurationError
        The task file is wrong.
    StateError
        It is none of the three, or a bundle or run that is damaged or unfinished, or labels of rows without answers.
    """
    kind = kind_of_source(path)
    if kind == "task file":
        return Task.from_file(path, splits=())
    # Task files do without what reads bundles and runs.
    if kind == "bundle":
        from calibrant.tuned._folder import read  # noqa: PLC0415

        return read(path)
    from calibrant.tuned._open import from_run  # noqa: PLC0415

    return from_run(path)


def load(
    path: str | Path | Tuned,
    *,
    model: ModelLike | None = None,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    journal: Journal | None = None,
    router_state: str | None = None,
) -> BasePredictor:
    """Open the classifier of a bundle, a run or a task file.

    Parameters
    ----------
    path : str, Path or Tuned
        The folder that `calibrant export` wrote, the directory of a run, or a task file; or a tuned classifier.
    model, options, limits, journal, router_state : optional
        See `Tuned.open`. A task file has its own options and its own router state.

    Returns
    -------
    Classifier or Cascade
        A `calibrant.cascade.Cascade` if the run or the task asks one. Closing it releases its models and files.

    Raises
    ------
    StateError
        The path holds none of these; or the bundle or run is damaged, altered or of another version, or its calls
        would differ from those that were measured.
    ConfigurationError
        The task file is wrong, an option is missing, unknown or wrong, or a model cannot be opened.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant import BatchEvaluator, Classifier, Example, Task, load
    >>> from calibrant.testing import FakeClient, fake_model
    >>> from calibrant.tuned import Tuned
    >>> out = Path(tempfile.mkdtemp())
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?")
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9)}, field="label", name="fake/pets")
    >>> with fake_model("fake/pets", fake) as name:
    ...     rows = [Example(input="purrs", answer="cat")]
    ...     _ = BatchEvaluator(Classifier.from_task(task, model=name)).evaluate(rows, out=out / "run")
    ...     _ = Tuned.from_run(out / "run", task=task, model=name).save(out / "bundle")
    ...     found = load(out / "bundle").classify("purrs")
    >>> found.label, round(found.confidence, 2)
    ('cat', 0.9)
    """
    found = read_source(path) if isinstance(path, str | Path) else path
    if isinstance(found, Task):
        if options or router_state is not None:
            raise ConfigurationError(
                f"Expected options and router_state for a bundle or a run alone, got {path}: write them in the task "
                "file."
            )
        return open_classifier(found, model=model, limits=limits, journal=journal)
    from calibrant.tuned._open import open_tuned  # noqa: PLC0415 (as above)

    return open_tuned(
        found, model=model, options=options, limits=limits, journal=journal, router_state=router_state
    )


def _what_is_there(place: Path) -> str:
    """Return the end of a message: the kind of a path, and a remedy."""
    if not os.path.isdir(place):  # noqa: PTH112
        return "nothing: check the path"
    runs = {found.parent for found in place.glob(f"*/{RESULT}")}
    inside = sorted(runs.union(place.glob("*.toml")))
    names = ", ".join(map(str, inside[:_MOST_NAMES]))
    remedy = f"name what is in it: {names}" if inside else "check the path"
    return f"a directory with neither: {remedy}"
