"""``calibrant serve``: a bundle over HTTP."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from calibrant.assembly._bundle import Bundle, read_bundle
from calibrant.assembly._bundle_load import load
from calibrant.cli._options import parse_option
from calibrant.core._errors import ConfigurationError
from calibrant.core._limits import Limits
from calibrant.core._predictor import Predictor
from calibrant.evaluation._history import EvaluationHistory
from calibrant.evaluation._history_run import AnswerRecorder, RunScope
from calibrant.serving._classifier_app import create_classifier_app
from calibrant.serving._logs import json_logs
from calibrant.serving._server import serve_app
from calibrant.serving._settings import ServiceSettings

_LOG = logging.getLogger("calibrant")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of the command, as they were given."""

    host: str
    port: int
    api_key_env: tuple[str, ...]
    max_body: int
    max_texts: int
    max_rows: int
    max_concurrency: int
    deadline: float
    notice: float
    log_texts: bool
    option: tuple[str, ...]
    history: str | None
    account: str
    profile: str | None
    as_json: bool


def run_serve(path: Path, given: ServeOptions) -> None:
    """Serve the bundle until a signal comes, then finish the accepted requests."""
    settings = ServiceSettings(
        api_keys=tuple(map(_key, given.api_key_env)),
        most_bytes=given.max_body,
        most_texts=given.max_texts,
        most_rows=given.max_rows,
        deadline_seconds=given.deadline,
        log_texts=given.log_texts,
    )
    bundle = read_bundle(path)
    classifier = load(
        bundle,
        options=dict(map(parse_option, given.option)),
        limits=Limits(concurrency=given.max_concurrency),
    )

    def ready(address: str) -> None:
        record = {"url": address, "name": bundle.name, "sha256": bundle.digest}
        line = f"{bundle.name} answers at {address}/v1/classify; Ctrl-C ends it."
        sys.stdout.write((json.dumps(record) if given.as_json else line) + "\n")
        sys.stdout.flush()
        # The objects loaded so far stay alive: collecting garbage among them would delay requests by some 100 ms.
        gc.collect()
        gc.freeze()

    with contextlib.ExitStack() as opened:
        opened.callback(gc.unfreeze)
        opened.callback(classifier.close)
        opened.enter_context(json_logs())
        recorder = _recorder(bundle, classifier, given)
        if recorder is not None:
            opened.callback(recorder.close)
        if not settings.api_keys and given.host not in {"127.0.0.1", "::1", "localhost"}:
            _LOG.warning("Other machines may be answered without a key: give --api-key-env.")
        serve_app(
            create_classifier_app(
                bundle,
                classifier,
                settings=settings,
                on_predictions=None if recorder is None else recorder.add,
            ),
            host=given.host,
            port=given.port,
            on_ready=ready,
            notice_seconds=given.notice,
            finish_seconds=settings.finish_seconds,
        )


def _recorder(bundle: Bundle, classifier: Predictor, given: ServeOptions) -> AnswerRecorder | None:
    """Return the recorder of answers; an unusable history fails before the first request."""
    if given.history is None:
        return None
    scope = RunScope(
        account_id=given.account,
        task=bundle.name,
        profile_name=given.profile or RunScope.profile_of(classifier),
    )
    return AnswerRecorder(EvaluationHistory(given.history), scope)


def _key(name: str) -> str:
    key = os.environ.get(name, "")
    if not key:
        raise ConfigurationError(f"Expected a key in the environment variable {name}, got none: set it.")
    return key
