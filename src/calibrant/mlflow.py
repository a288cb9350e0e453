"""Runs and bundles for MLflow: runs are logged to a tracking server, bundles become models that MLflow serves.

Needs the extra ``mlflow``. Server, experiment and credentials are those of MLflow's own environment variables.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant.core._errors import CalibrantError, ConfigurationError, ProviderError, StateError
from calibrant.core._files import read_run_record
from calibrant.core._installation import install_command
from calibrant.core._reported import is_number
from calibrant.inference._models import without_secrets
from calibrant.reports._html import write_report
from calibrant.runs._directory import KNOWN_TEXTS, MANIFEST, METRICS, RESULT
from calibrant.tuned._folder import read
from calibrant.tuned._open import from_run

if TYPE_CHECKING:
    import pandas as pd

    from calibrant.heads._tuned import Tuned


__all__ = ["log_run", "save_model"]

TEXT: Final = "text"
"""Column of the texts, in what a served model is asked."""

_BUNDLE: Final = "bundle"
_REMEDY: Final = "restore the file or run it again"
_FORBIDDEN: Final = re.compile(r"[^\w./ -]")
_LONGEST: Final = 6000  # characters of a parameter that servers take
_AT_ONCE: Final = {"params": 100, "metrics": 1000}
# Settings, positions, and what an interval beside it says as well.
_NOT_FIGURES: Final = frozenset(
    {
        "schema_version",
        "seed",
        "chosen",
        "answered_labels",
        "difference",
        "only_a",
        "only_b",
        "raced",
        "other",
    }
)
_SETTINGS: Final = ("task", "model", "proposer", "seed", "chosen")  # of metrics or of a result
# Whoever has a text could tell by the digests whether it was a row.
_NOT_SETTINGS: Final = frozenset({"schema_version", "response_format", KNOWN_TEXTS})
_OPTIONS: Final = "options"  # at the end of the names of what may hold credentials
_CURVE: Final = ("score", "accuracy", "macro_f1", "log_loss", "credit")
# MLflow's own seven retries of two minutes each would hold a finished run up for long.
_PATIENCE: Final = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


def log_run(directory: str | Path) -> str:
    """Log a finished run of `calibrant evaluate` or `calibrant optimize` to the tracking server, from its directory.

    Parameters are settings; metrics are figures, those with an interval beside ``_low`` and ``_high``. A search is
    logged as curves over its prompts, by number: ``validation/...`` are the rows that chose, ``test/...`` those that
    judge. Artefacts are the report and the bundle, which is an MLflow model; both may hold texts of rows. Characters
    that MLflow forbids in a name become ``_``; of names that are equal then, the later ones end in a number.

    Parameters
    ----------
    directory : str or Path
        Directory of the run.

    Returns
    -------
    str
        MLflow's name of the run.

    Raises
    ------
    ConfigurationError
        MLflow is not installed.
    StateError
        The directory holds no finished run.
    ProviderError
        The tracking server failed or cannot be reached. What it has of the run is marked as failed.

    Examples
    --------
    >>> from calibrant.mlflow import log_run
    >>> log_run("runs/check")  # doctest: +SKIP
    '3e8c773fbc2d4630ae33f7a6b40b9033'
    """
    place = Path(directory)
    mlflow = _library()
    logged = _Logged(place)
    with tempfile.TemporaryDirectory() as folder, _patient(), _quiet():
        files = Path(folder)
        try:
            write_report(place, out=files / "report.html")
            with contextlib.suppress(CalibrantError):  # no classifier, such as one on saved predictions
                _save(from_run(place), files / _BUNDLE)
            is_nested = mlflow.active_run() is not None
            with mlflow.start_run(run_name=place.resolve().name, nested=is_nested) as run:
                logged.send(mlflow, run.info.run_id)
                mlflow.log_artifacts(str(files))
        except CalibrantError:
            raise
        except Exception as error:  # the server's, the network's or the file system's
            server = mlflow.get_tracking_uri()
            shown = without_secrets({"api_base": server})[0].get("api_base", "...")
            reason = str(error).replace(server, shown)
            raise ProviderError(f"the run was not logged: {reason:.120} ...", provider="MLflow") from error
        return str(run.info.run_id)


def save_model(bundle: str | Path, path: str | Path) -> None:
    """Save a bundle as an MLflow model, which ``mlflow models serve`` answers from.

    A served model is asked for rows with a column ``text`` and answers with the columns label, confidence, decision
    and outcome.

    Parameters
    ----------
    bundle : str or Path
        Folder that `calibrant export` wrote.
    path : str or Path
        Folder for the model; it must not exist.

    Raises
    ------
    ConfigurationError
        MLflow is not installed, or the folder is taken.
    StateError
        The folder is no bundle.

    Examples
    --------
    >>> from calibrant.mlflow import save_model
    >>> save_model("mine/bundle", "mine/model")  # doctest: +SKIP
    """
    _library()
    if Path(path).exists():
        raise ConfigurationError(
            f"Expected a new folder for the model, got {path}, which exists: name another."
        )
    with _quiet():
        _save(read(bundle), Path(path))


def _library() -> Any:  # noqa: ANN401 (its types are unknown here)
    try:
        importlib.import_module("mlflow.pyfunc")
        return importlib.import_module("mlflow")
    except ImportError as error:
        raise ConfigurationError(
            f"MLflow is not installed ({error}): run {install_command('mlflow')}."
        ) from error


def _save(tuned: Tuned, path: Path) -> None:
    """Write an MLflow model with a bundle as its data."""
    from mlflow import pyfunc  # noqa: PLC0415 (an extra)
    from mlflow.models import ModelSignature  # noqa: PLC0415
    from mlflow.types import ColSpec, Schema  # noqa: PLC0415

    answers = [("string", "label"), ("double", "confidence"), ("string", "decision"), ("string", "outcome")]
    signature = ModelSignature(
        Schema([ColSpec("string", TEXT)]),
        Schema([ColSpec(kind, name, required=name == "outcome") for kind, name in answers]),
    )
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / _BUNDLE
        tuned.save(bundle)
        pyfunc.save_model(
            str(path),
            loader_module=__name__,
            data_path=str(bundle),
            signature=signature,
            pip_requirements=[f"calibrant[mlflow]=={version('calibrant')}"],
        )


@contextlib.contextmanager
def _patient() -> Iterator[None]:
    """Let MLflow give up soon on a server that does not answer, unless the user has said how long to try."""
    ours = {name: value for name, value in _PATIENCE.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow's links, its advice and its retries from the output of a command."""
    levels = {log: log.level for log in map(logging.getLogger, ("mlflow", "urllib3"))}
    for log in levels:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in levels.items():
            log.setLevel(level)


class _Served:
    """Classifier behind MLflow's interface of models."""

    def __init__(self, tuned: Tuned) -> None:
        self._tuned = tuned
        self._classifier = tuned.open()

    def predict(self, model_input: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Return label, confidence, decision and outcome of each row."""
        import pandas as pd  # noqa: PLC0415 (it is imported already)

        del params
        texts = [str(text) for text in model_input[TEXT]]
        predictions = self._classifier.classify_many(texts)
        decisions = self._tuned.decide_many(predictions)
        warning = self._tuned.model_warning(one.model for one in predictions)
        if warning is not None:
            warnings.warn(warning, stacklevel=2)
        return pd.DataFrame(
            {
                "label": [one.label for one in predictions],
                "confidence": [one.final_confidence for one in decisions],
                "decision": [one.name for one in decisions],
                "outcome": [one.outcome.value for one in predictions],
            }
        )


def _load_pyfunc(path: str) -> _Served:
    """Open the bundle of a model; MLflow looks this function up by its name."""
    return _Served(read(path))


class _Logged:
    """Parameters and metrics of a run, read from its directory."""

    def __init__(self, directory: Path) -> None:
        self.params: dict[str, str] = {"calibrant": version("calibrant")}
        self.metrics: list[tuple[str, float, int]] = []
        self._names: dict[str, str] = {}
        is_search = (directory / RESULT).exists()
        if not is_search and not (directory / METRICS).exists():
            raise StateError(
                f"{directory}: expected a finished run of evaluate or optimize, found neither {METRICS} nor {RESULT}."
            )
        manifest = read_run_record(directory / MANIFEST, remedy=_REMEDY)
        settings = {name: value for name, value in manifest.items() if name not in _NOT_SETTINGS}
        self._settings("", settings)
        record = read_run_record(directory / (RESULT if is_search else METRICS), remedy=_REMEDY)
        if record.get("complete") is False:
            raise StateError(
                f"{directory}: expected a finished run, got one that stopped early: finish it first."
            )
        self._settings("", {name: record.get(name) for name in _SETTINGS})
        if is_search:
            self._search(record)
        else:
            self._figures("", record)

    def send(self, mlflow: Any, run_id: str) -> None:  # noqa: ANN401 (its types are unknown here)
        """Send everything, in as many requests as the server's limits ask for."""
        from mlflow.entities import Metric, Param  # noqa: PLC0415 (an extra)

        client = mlflow.MlflowClient()
        now = client.get_run(run_id).info.start_time
        entries: dict[str, list[Any]] = {
            "params": [Param(name, value[:_LONGEST]) for name, value in self.params.items()],
            "metrics": [Metric(name, value, now, step) for name, value, step in self.metrics],
        }
        for kind, most in _AT_ONCE.items():
            for start in range(0, len(entries[kind]), most):
                client.log_batch(run_id, **{kind: entries[kind][start : start + most]})

    def _settings(self, prefix: str, record: Mapping[str, Any]) -> None:
        """Add the settings of a record, nested ones with their path as name."""
        for name, value in record.items():
            if isinstance(value, Mapping):
                public = value
                if name.endswith(_OPTIONS):
                    public = without_secrets(value)[0]
                self._settings(f"{prefix}{name}.", public)
            elif isinstance(value, str | int | float):
                self.params[self._allowed(prefix + name)] = str(value)

    def _allowed(self, name: str) -> str:
        """Return a name that servers take; of names that differ in other characters alone, the later get a number."""
        if name not in self._names:
            allowed = plain = _FORBIDDEN.sub("_", name)
            taken = set(self._names.values())
            number = 2
            while allowed in taken:
                allowed = f"{plain}_{number}"
                number += 1
            self._names[name] = allowed
        return self._names[name]

    def _figures(self, prefix: str, value: object, step: int = 0) -> None:
        """Add a figure, or those of a record, nested ones with their path as name."""
        if isinstance(value, Mapping) and {"lower", "upper", "estimate"} <= value.keys():
            for end, key in (("", "estimate"), ("_low", "lower"), ("_high", "upper")):
                self._figures(prefix + end, value[key], step)
        elif isinstance(value, Mapping):
            for name, part in value.items():
                path = f"{prefix}/{name}" if prefix else str(name)
                if name not in _NOT_FIGURES:
                    self._figures(prefix if name == "interval" else path, part, step)
        elif is_number(value):
            self.metrics.append((self._allowed(prefix), float(value), step))

    def _search(self, record: Mapping[str, Any]) -> None:
        """Add the curves of a search, and its figures: those of the rows that judge under ``test/``."""
        self.params["prompt"] = record["best_prompt"]["prompt"]
        for step, candidate in enumerate(record["validated"]):
            for name in _CURVE:
                self._figures(f"validation/{name}", candidate.get(name), step)
        self._figures("validation/by_head", record.get("by_head"))
        final = record.get("final") or {}
        for step, score in ((0, record["seed_prompt"]), (record["chosen"], record["best_prompt"])):
            self._figures("test/accuracy", score["accuracy"], step)
            self._figures("test/macro_f1", score["macro_f1"], step)
        judged = {name: record.get(name) for name in ("seed_prompt", "best_prompt")}
        judged |= {"gain": record.get("comparison"), "final": final.get("score")}
        judged |= {name: final.get(name) for name in ("against_seed", "against_text", "against_embeddings")}
        judged |= {one["name"]: one for one in final.get("baselines", ())}
        for name, score in judged.items():
            tested = {key: value for key, value in (score or {}).items() if key != "validation_score"}
            self._figures(f"test/{name}", tested)
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
        self._figures("search", numbers)
