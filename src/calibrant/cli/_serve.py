"""``calibrant serve``, ``mcp`` and ``verifier serve``: a bundle, a model, or a verifier of answers, to programs."""

from __future__ import annotations

import gc
import json
import logging
import os
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from calibrant import evaluation, serving
from calibrant.assembly._sections import open_classifier
from calibrant.cli._app import ServeVerifier
from calibrant.cli._commands import Mcp, Serve
from calibrant.cli._options import parse_option
from calibrant.cli._tables import print_output, say
from calibrant.core._errors import ConfigurationError
from calibrant.core._predictor import Limits, Predictor
from calibrant.core._reported import without_none
from calibrant.core._task import RecordedTask
from calibrant.evaluation._history import AnswerRecorder, RunScope
from calibrant.heads._tuned import Tuned
from calibrant.inference._base import BasePredictor
from calibrant.inference._classifier import Classifier
from calibrant.tuned._open import open_tuned
from calibrant.tuned._sources import read_source

_LOG = logging.getLogger("calibrant")
_LOOPBACK: Final = "127.0.0.1"
_LOGGERS: Final = ("calibrant", "uvicorn", "asyncio")


def serve(options: Serve) -> None:
    """Serve the bundle or the model until a signal comes, then finish the accepted requests."""
    create_app = serving.create_classifier_app  # first, as it says which extra is missing
    from calibrant.serving._server import serve_app

    settings = _service_settings(options)
    with ExitStack() as opened:
        if options.source is None:
            classifier = _model_alone(options)
            opened.callback(classifier.close)
            app = serving.create_decision_app(classifier, settings=settings)
            record: dict[str, str | None] = {"name": classifier.name}
        else:
            _refuse_model(options.source, options)
            loaded, predictor = _opened(options.source, options)
            opened.callback(predictor.close)
            recorder = _recorder(loaded, predictor, options)
            if recorder is not None:
                opened.callback(recorder.close)
            on_predictions = None if recorder is None else recorder.add
            app = create_app(loaded, predictor, settings=settings, on_predictions=on_predictions)
            record = {"name": loaded.name, "sha256": loaded.digest}
        opened.callback(gc.unfreeze)
        opened.enter_context(json_logs())
        if not settings.api_keys and options.host not in {"127.0.0.1", "::1", "localhost"}:
            _LOG.warning("Other machines may be answered without a key: give --api-key-env.")
        path = "systemone" if options.source is None else "classify"

        def announce(address: str) -> None:
            line = f"{record['name']} answers at {address}/v1/{path}; Ctrl-C ends it."
            print_output({"url": address, **record}, [line], as_json=options.as_json)
            # The objects loaded so far stay alive: collecting garbage among them would delay requests by some 100 ms.
            gc.collect()
            gc.freeze()

        serve_app(
            app,
            host=options.host,
            port=options.port,
            on_ready=announce,
            notice_seconds=options.notice,
            finish_seconds=settings.finish_seconds,
        )


def _service_settings(options: Serve) -> serving.ServiceSettings:
    return serving.ServiceSettings(
        api_keys=tuple(map(_key, options.api_key_env or ())),
        most_bytes=options.max_body,
        most_texts=options.max_texts,
        most_rows=options.max_rows,
        deadline_seconds=options.deadline,
        log_texts=options.log_texts,
        only_task=options.only_task,
    )


def _model_alone(options: Serve) -> Classifier:
    """Open the model that `options` name; it is asked other questions than the classifier's own."""
    given = {
        "--history": options.history,
        "--accept-suggested": options.accept_suggested,
        "--accept-drift": options.accept_drift,
        "--only-task": options.only_task,
    }
    needless = [name for name, value in given.items() if value]
    if options.model is None or needless:
        got = needless[0] if needless else "neither"
        raise ConfigurationError(
            f"Expected a bundle, a run or a task file, or --model alone, got {got}: name what is to be served."
        )
    address = without_none({"api_base": options.api_base})
    return Classifier(
        model=options.model,
        labels=["no", "yes"],
        options=address | dict(map(parse_option, options.option or ())),
        limits=Limits(concurrency=options.max_concurrency),
    )


def serve_agents(options: Mcp) -> None:
    """Serve the bundle's tools to agents until their input ends, or a signal comes."""
    create_server = serving.create_mcp_server  # first, as it says which extra is missing
    tuned, predictor = _opened(options.source, options)
    with closing(predictor), json_logs():
        server = create_server(tuned, predictor)
        if options.port is None:
            server.run("stdio")
            return
        say(f"{tuned.name} answers agents at http://{_LOOPBACK}:{options.port}/mcp; Ctrl-C ends it.")
        # The library refuses other hosts and origins at this address.
        server.run("streamable-http", host=_LOOPBACK, port=options.port)


def _refuse_model(source: Path, options: Serve) -> None:
    if options.model is not None:
        raise ConfigurationError(f"Expected either {source} or --model {options.model}, got both.")
    if options.api_base is not None:
        raise ConfigurationError(
            "Expected --api-base beside --model, got it without: use --option api_base=URL."
        )


def _opened(source: Path, options: Serve | Mcp) -> tuple[Tuned, BasePredictor]:
    """Open a bundle, a run, or a task file, which decides nothing."""
    found = read_source(source)
    limits = Limits(concurrency=options.max_concurrency)
    given = dict(map(parse_option, options.option or ()))
    if isinstance(found, Tuned):
        tuned = found.accepting_suggested() if options.accept_suggested else found
        if options.accept_drift:
            tuned = tuned.accepting_drift()
        return tuned, open_tuned(tuned, options=given, limits=limits)
    if given or options.accept_suggested or options.accept_drift:
        raise ConfigurationError(
            "Expected --option, --accept-suggested and --accept-drift with a bundle or a run, got a task file: set "
            "options under [model] there; it has no thresholds."
        )
    classifier = open_classifier(found, limits=limits)
    tuned = Tuned(tasks=(RecordedTask(task=found),), fingerprint=classifier.fingerprint())
    return tuned, classifier


def _recorder(tuned: Tuned, classifier: Predictor, options: Serve) -> AnswerRecorder | None:
    """Return the recorder of answers, or None without ``--history``."""
    if options.history is None:
        return None
    scope = RunScope.of(classifier, account_id=options.account, task=tuned.name, profile_name=options.profile)
    return AnswerRecorder(evaluation.EvaluationHistory(options.history), scope)


def serve_verifier(options: ServeVerifier) -> None:
    """Serve the verifier until Ctrl-C."""
    from calibrant.cascade.methods._verification import Verifier  # bundles need no cascade
    from calibrant.cli._prompted import read_prompt

    create_app = serving.create_verifier_app  # first, as it says which extra is missing
    from calibrant.serving._server import serve_app

    given = dict(map(parse_option, options.option or ()))
    if options.api_base is not None:
        given["api_base"] = options.api_base
    verifier = Verifier(
        options.model,
        k=options.samples,
        temperature=options.temperature,
        prompt=None if options.prompt is None else read_prompt(options.prompt),
        concurrency=options.max_concurrency,
        options=given,
    )
    figures = {"model": verifier.model, "num_samples": options.samples, "threshold": options.threshold}

    def ready(address: str) -> None:
        line = f"{verifier.model} verifies at {address}; Ctrl-C ends it."
        print_output({"url": address, **figures}, [line], as_json=options.as_json)

    with closing(verifier):
        app = create_app(verifier, threshold=options.threshold)
        serve_app(app, host=options.host, port=options.port, on_ready=ready)


def _key(name: str) -> str:
    key = os.environ.get(name, "")
    if not key:
        raise ConfigurationError(f"Expected a key in the environment variable {name}, got none: set it.")
    return key


class _JsonLines(logging.Formatter):
    """Formatter of log records as JSON lines, without exception messages, which may quote texts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
        found = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            # Further lines of asyncio's show objects, and so texts.
            "event": record.getMessage().partition("\n")[0],
            **getattr(record, "fields", {}),
        }
        if record.exc_info is not None and record.exc_info[0] is not None:
            kind, _, place = record.exc_info
            found["error"] = kind.__qualname__
            found["place"] = [f"{at.filename}:{at.lineno}" for at in traceback.extract_tb(place)][-5:]
        return json.dumps(found, default=str)


@contextmanager
def json_logs() -> Iterator[None]:
    """Write the service's logs as JSON lines to standard error during the block."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    loggers[0].setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
