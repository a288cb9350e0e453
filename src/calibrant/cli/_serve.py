"""``calibrant serve``: a bundle over HTTP."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from calibrant import assembly, evaluation, serving
from calibrant.assembly._bundle_load import load
from calibrant.cli._options import parse_option
from calibrant.cli._tables import print_output
from calibrant.core._errors import ConfigurationError
from calibrant.core._limits import Limits
from calibrant.core._predictor import Predictor
from calibrant.evaluation._history_run import AnswerRecorder, RunScope

_LOG = logging.getLogger("calibrant")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of the command.

    Attributes
    ----------
    host
        Where to listen; 0.0.0.0 lets other machines in.
    port
        0 takes a free one.
    api_key_env : NAME
        Environment variable with a key to want; may be given several times.
    max_body
        Bytes of a request at most.
    max_texts
        Texts of a request at most.
    max_rows
        Texts under way at most; beyond it, 429.
    max_concurrency
        Calls of the model in flight at most.
    deadline
        Seconds a request may take.
    notice
        Seconds between SIGTERM and the last request taken.
    log_texts
        Log texts and labels, too.
    as_json
        Print one JSON object, with the address, when ready.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8890
    api_key_env: list[str] | None = None
    max_body: int = 2**20
    max_texts: int = 100
    max_rows: int = 256
    max_concurrency: int = 64
    deadline: float = 30.0
    notice: Annotated[float, typer.Option(min=0, max=3600)] = 1.0
    log_texts: bool = False
    option: list[str] | None = None
    history: str | None = None
    account: str = "default"
    profile: str | None = None
    as_json: bool = False


def serve(bundle: Path, options: ServeOptions) -> None:
    """Serve the bundle until a signal comes, then finish the accepted requests.

    Parameters
    ----------
    bundle : DIR
        The bundle; see `calibrant export`.
    """
    from calibrant.serving._logs import json_logs
    from calibrant.serving._server import serve_app  # loads the server, which help does without

    settings = serving.ServiceSettings(
        api_keys=tuple(map(_key, options.api_key_env or ())),
        most_bytes=options.max_body,
        most_texts=options.max_texts,
        most_rows=options.max_rows,
        deadline_seconds=options.deadline,
        log_texts=options.log_texts,
    )
    loaded = assembly.read_bundle(bundle)
    with ExitStack() as opened:
        classifier = load(
            loaded,
            options=dict(map(parse_option, options.option or ())),
            limits=Limits(concurrency=options.max_concurrency),
        )
        opened.callback(classifier.close)
        opened.callback(gc.unfreeze)
        opened.enter_context(json_logs())
        recorder = _recorder(loaded, classifier, options)
        if recorder is not None:
            opened.callback(recorder.close)
        if not settings.api_keys and options.host not in {"127.0.0.1", "::1", "localhost"}:
            _LOG.warning("Other machines may be answered without a key: give --api-key-env.")
        record = None if recorder is None else recorder.add
        serve_app(
            serving.create_classifier_app(loaded, classifier, settings=settings, on_predictions=record),
            host=options.host,
            port=options.port,
            on_ready=_announcer(loaded, as_json=options.as_json),
            notice_seconds=options.notice,
            finish_seconds=settings.finish_seconds,
        )


def _announcer(bundle: assembly.Bundle, *, as_json: bool) -> Callable[[str], None]:
    """Return a function that prints the address of the service once it is ready."""

    def announce(address: str) -> None:
        record = {"url": address, "name": bundle.name, "sha256": bundle.digest}
        line = f"{bundle.name} answers at {address}/v1/classify; Ctrl-C ends it."
        print_output(record, [line], as_json=as_json)
        # The objects loaded so far stay alive: collecting garbage among them would delay requests by some 100 ms.
        gc.collect()
        gc.freeze()

    return announce


def _recorder(bundle: assembly.Bundle, classifier: Predictor, options: ServeOptions) -> AnswerRecorder | None:
    """Return the recorder of answers; an unusable history fails before the first request."""
    if options.history is None:
        return None
    scope = RunScope(
        account_id=options.account,
        task=bundle.name,
        profile_name=options.profile or RunScope.profile_of(classifier),
    )
    return AnswerRecorder(evaluation.EvaluationHistory(options.history), scope)


def _key(name: str) -> str:
    key = os.environ.get(name, "")
    if not key:
        raise ConfigurationError(f"Expected a key in the environment variable {name}, got none: set it.")
    return key
