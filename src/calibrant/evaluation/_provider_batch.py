"""Jobs at a provider's batch interface: submitted once, watched, collected, and retried where rows failed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from calibrant.core._completion import CompletionRequest
from calibrant.core._errors import ConfigurationError, ProviderError, StateError
from calibrant.core._files import atomic_writer
from calibrant.core._prediction import Outcome
from calibrant.core._predictor import Query
from calibrant.core._rows import Example
from calibrant.evaluation._provider_batch_answers import Answers
from calibrant.evaluation._provider_batch_learned import described, finisher, keep_learned
from calibrant.evaluation._provider_batch_report import BatchReport, Polling
from calibrant.evaluation._provider_batch_state import (
    BatchDirectory,
    BatchLimits,
    BatchPart,
    BatchState,
    custom_id,
)
from calibrant.inference import RetryPolicy
from calibrant.inference._classifier import Classifier
from calibrant.inference._loop import run_sync
from calibrant.inference._methods import Decoding
from calibrant.inference._models import BatchApi, RemoteBatch, open_batch_api
from calibrant.runs._folder import differing_keys
from calibrant.runs._records import row_line

_LOG = logging.getLogger("calibrant")
_NOT_SENT: Final = ("api_key", "api_base", "timeout")


def submit_batch(
    classifier: Classifier,
    rows: Sequence[Example],
    *,
    out: Path,
    limits: BatchLimits | None = None,
    retry: RetryPolicy | None = None,
) -> BatchReport:
    """Send rows to the batch interface of the classifier's provider, each row once.

    After a crash, the same call goes on where it stopped; once everything is sent, it does nothing.

    Parameters
    ----------
    classifier : Classifier
        Says what is asked; built from a model's name, and decodes. Its head and its label-prior correction are
        kept in the directory, and applied to what is collected.
    rows : sequence of Example
        Its texts; an answer may be empty.
    out : Path
        Directory of the job.
    limits : BatchLimits, optional
        How large a request file may be; by default as large as OpenAI takes them.
    retry : RetryPolicy, optional
        How passing faults are retried.

    Returns
    -------
    BatchReport
        What was sent.

    Raises
    ------
    ConfigurationError
        The model has no batch interface, does not decode, or there are no rows.
    StateError
        The directory holds something else, or a job of another task, prompt, model or data.
    ProviderError
        The provider cannot be reached, or refuses; nothing that was sent is lost.
    """
    method = _decoding(classifier)
    if not rows:
        raise ConfigurationError("Expected at least one row to submit, got none.")
    api = open_batch_api(classifier.name, options=classifier.options, retry=retry)
    directory = BatchDirectory(out)
    try:
        with directory.locked(create=True):
            wanted = _new_state(classifier, method, api, rows)
            state = directory.load()
            if state is None:
                directory.write_rows(rows)
                keep_learned(out, classifier)
                state = _with_requests(
                    directory, wanted, _lines(classifier, api, rows), limits or BatchLimits()
                )
            _check_same(out, state, wanted.fingerprint)
            return run_sync(_send(api, directory, state))
    finally:
        api.close()


def batch_status(path: Path, *, api_key: str | None = None, retry: RetryPolicy | None = None) -> BatchReport:
    """Look once at every batch that has not ended.

    Parameters
    ----------
    path : Path
        Directory of the job.
    api_key : str, optional
        By default the environment's.
    retry : RetryPolicy, optional
        How passing faults are retried.

    Raises
    ------
    StateError
        It is no such directory.
    ProviderError
        The provider does not say.
    """
    directory = BatchDirectory(path)
    with directory.locked():
        state = _load(directory)
        api = _open(state, api_key, retry)
        try:
            state = run_sync(_look(api, directory, state))
        finally:
            api.close()
    return BatchReport(path=path, rows=state.rows, parts=state.parts)


def collect_batch(
    path: Path,
    *,
    wait: Polling | None = None,
    api_key: str | None = None,
    retry: RetryPolicy | None = None,
    on_look: Callable[[BatchReport], None] | None = None,
) -> BatchReport:
    """Fetch what has ended, and write ``predictions.jsonl`` once everything has.

    Parameters
    ----------
    path : Path
        Directory of the job.
    wait : Polling, optional
        Wait until every batch has ended; by default there is one look.
    api_key : str, optional
        By default the environment's.
    retry : RetryPolicy, optional
        How passing faults are retried.
    on_look : callable, optional
        Called with the report of each look.

    Returns
    -------
    BatchReport
        Without outcomes where a batch has not ended.

    Raises
    ------
    StateError
        It is no such directory, or not everything was submitted.
    ProviderError
        The provider does not say, or a file of its is gone.
    CalibrantError
        The directory was moved or removed meanwhile; the message says where the job is kept.
    """
    directory = BatchDirectory(path)
    with directory.locked():
        state = _load(directory)
        _check_sent(directory, state)
        api = _open(state, api_key, retry)
        try:
            with directory.rescuing(state):
                state = run_sync(_watch(api, directory, state, wait, on_look))
                report = BatchReport(path=path, rows=state.rows, parts=state.parts)
                return _join(directory, state, api) if report.ended else report
        finally:
            api.close()


def retry_batch(
    path: Path,
    *,
    limits: BatchLimits | None = None,
    api_key: str | None = None,
    retry: RetryPolicy | None = None,
) -> BatchReport:
    """Submit the rows of a collected job that ended in an error once more, as they were asked before.

    After a crash, the same call goes on where it stopped.

    Parameters
    ----------
    path : Path
        Directory of the job.
    limits : BatchLimits, optional
        How large a request file may be; by default as large as OpenAI takes them.
    api_key : str, optional
        By default the environment's.
    retry : RetryPolicy, optional
        How passing faults are retried.

    Raises
    ------
    StateError
        It is no such directory, or not everything was collected.
    ProviderError
        The provider cannot be reached, or refuses.
    """
    directory = BatchDirectory(path)
    with directory.locked():
        state = _load(directory)
        api = _open(state, api_key, retry)
        try:
            if all(part.batch_id is not None for part in state.parts):
                state = _with_failed_rows(directory, state, api, limits or BatchLimits())
            return run_sync(_send(api, directory, state))
        finally:
            api.close()


def _decoding(classifier: Classifier) -> Decoding:
    method = classifier.method
    if isinstance(method, Decoding):
        return method
    raise ConfigurationError(
        f"Expected a model that decodes, got {type(method).__name__} for {classifier.name}: a batch asks "
        "once per row. Set scoring = 'decode' under [model], or classify without the batch interface."
    )


def _request(classifier: Classifier, text: str) -> CompletionRequest:
    """Return what the runner would ask."""
    query = Query(prompt=classifier.prompt, text=text, user_template=classifier.user_template)
    return classifier.request(query)


def _lines(classifier: Classifier, api: BatchApi, rows: Sequence[Example]) -> Iterator[str]:
    for index, row in enumerate(rows):
        yield api.line(custom_id(index), _request(classifier, row.input))


def _new_state(
    classifier: Classifier, method: Decoding, api: BatchApi, rows: Sequence[Example]
) -> BatchState:
    return BatchState(
        run=uuid.uuid4().hex,
        created=time.time(),
        rows=len(rows),
        fingerprint=_fingerprint(classifier, method, api, rows),
        connection={
            "model": classifier.name,
            "api_base": api.address,
            "timeout": classifier.options.get("timeout", 60.0),
        },
        reading=dict(method.reader.describe()),
        described=described(classifier),
    )


def _fingerprint(
    classifier: Classifier, method: Decoding, api: BatchApi, rows: Sequence[Example]
) -> dict[str, str]:
    """Return digests, so that what differs can be named and nothing be read."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row.input, row.answer]).encode())
    options = {name: value for name, value in classifier.options.items() if name not in _NOT_SENT}
    about = classifier.describe()
    shown, learned = about.get("demonstrations"), [about.get("head"), about["label_prior"]]
    return {
        "model": _digest([classifier.name, api.address]),
        "prompt": _digest([classifier.prompt, classifier.user_template, *([] if shown is None else [shown])]),
        "labels": _digest([method.describe(), classifier.response_format]),
        "options": _digest([options, classifier.top_logprobs]),
        "rows": digest.hexdigest(),
        **({"corrections": _digest(learned)} if any(learned) else {}),
    }


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()


def _check_same(path: Path, state: BatchState, fingerprint: Mapping[str, Any]) -> None:
    if differing := differing_keys(state.fingerprint, fingerprint):
        raise StateError(
            f"{path}: holds a job that differs in {', '.join(differing)}: choose another directory, or submit the "
            "same again."
        )


def _load(directory: BatchDirectory) -> BatchState:
    state = directory.load()
    if state is None:
        raise StateError(f"{directory.path}: holds no submitted job: submit one first.")
    return state


def _check_sent(directory: BatchDirectory, state: BatchState) -> None:
    unsent = [part.number for part in state.parts if part.batch_id is None]
    if unsent:
        raise StateError(
            f"{directory.path}: part {unsent[0]} of {len(state.parts)} was not submitted: run the command that was "
            "cut off (calibrant batch submit or retry) again."
        )


def _open(state: BatchState, api_key: str | None, retry: RetryPolicy | None) -> BatchApi:
    options = {name: state.connection[name] for name in ("api_base", "timeout")}
    return open_batch_api(state.connection["model"], options={**options, "api_key": api_key}, retry=retry)


async def _send(api: BatchApi, directory: BatchDirectory, state: BatchState) -> BatchReport:
    """Make the batches that are missing; every step is on disk before the next is taken."""
    submitted = 0

    def save(part: BatchPart) -> BatchPart:
        nonlocal state
        state = state.with_part(part)
        directory.save(state)
        return part

    for missing in [part for part in state.parts if part.batch_id is None]:
        part = missing
        if part.file_id is None:
            part = save(replace(part, file_id=await api.upload(directory.requests(part))))
        began_earlier = part.asked
        part = save(replace(part, asked=True))
        batch = await api.create(
            str(part.file_id),
            metadata={"calibrant_run": state.run, "calibrant_part": str(part.number)},
            since=state.created,
            look_first=began_earlier,
        )
        save(_seen(part, batch))
        submitted += 1
    return BatchReport(path=directory.path, rows=state.rows, parts=state.parts, submitted=submitted)


def _seen(part: BatchPart, batch: RemoteBatch) -> BatchPart:
    return replace(
        part,
        batch_id=batch.id,
        status=batch.status,
        completed=batch.completed,
        failed=batch.failed,
        output_file=batch.output_file,
        error_file=batch.error_file,
        errors=batch.errors,
    )


async def _look(api: BatchApi, directory: BatchDirectory, state: BatchState) -> BatchState:
    for part in state.parts:
        if part.batch_id is not None and not part.ended:
            state = state.with_part(_seen(part, await api.look(part.batch_id)))
    directory.save(state)
    return state


async def _fetch(api: BatchApi, directory: BatchDirectory, state: BatchState) -> BatchState:
    for part in state.parts:
        if not part.ended or part.fetched:
            continue
        if part.output_file is not None:
            await api.download(part.output_file, directory.answers(part))
        if part.error_file is not None:
            await api.download(part.error_file, directory.errors(part))
        state = state.with_part(replace(part, fetched=True))
        directory.save(state)
    return state


async def _watch(
    api: BatchApi,
    directory: BatchDirectory,
    state: BatchState,
    wait: Polling | None,
    on_look: Callable[[BatchReport], None] | None,
) -> BatchState:
    """Look and fetch, once or until every batch has ended."""
    start, failures = time.monotonic(), 0
    pause = 0.0 if wait is None else min(wait.seconds, wait.maximum_seconds)
    while True:
        try:
            state = await _fetch(api, directory, await _look(api, directory, state))
            failures = 0
        except ProviderError as error:
            failures += 1
            if wait is None or not error.retryable or failures >= wait.failures:
                raise
            state = directory.load() or state  # what was seen before the failure
            _LOG.warning("%s (looking again)", error)
        report = BatchReport(path=directory.path, rows=state.rows, parts=state.parts)
        if on_look is not None:
            on_look(report)
        done = report.ended and all(part.fetched for part in state.parts)
        if done or wait is None:
            return state
        if wait.timeout_seconds is not None:
            left = start + wait.timeout_seconds - time.monotonic()
            if left <= 0:
                return state
            pause = min(pause, left)
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, wait.maximum_seconds)


def _join(directory: BatchDirectory, state: BatchState, api: BatchApi) -> BatchReport:
    """Write every row in input order, the file as a whole or not at all."""
    answers, finish = Answers(directory, state, api), finisher(directory.path, state)
    outcomes: Counter[str] = Counter()
    tokens = [0, 0]
    with atomic_writer(directory.predictions) as file:
        rows = zip(directory.read_rows(state.rows), answers.predictions(), strict=True)
        for index, (example, answer) in enumerate(rows):
            prediction = finish(answer, example.input)
            file.write(row_line(index, example, prediction).decode())
            outcomes[prediction.outcome.value] += 1
            tokens[0] += prediction.usage.prompt_tokens
            tokens[1] += prediction.usage.completion_tokens
    return BatchReport(
        path=directory.path,
        rows=state.rows,
        parts=state.parts,
        outcomes=dict(outcomes),
        prompt_tokens=tokens[0],
        completion_tokens=tokens[1],
        broken=answers.broken,
        unknown=answers.unknown,
        duplicates=answers.duplicates,
    )


def _with_failed_rows(
    directory: BatchDirectory, state: BatchState, api: BatchApi, limits: BatchLimits
) -> BatchState:
    """Return the state with request files for the rows that ended in an error, if there are any."""
    if not all(part.fetched for part in state.parts):
        raise StateError(f"{directory.path}: not everything was collected: collect first.")
    answers = Answers(directory, state, api)
    failed = {
        row for row, prediction in enumerate(answers.predictions()) if prediction.outcome is Outcome.ERROR
    }
    if not failed:
        return state

    def lines() -> Iterator[str]:
        left = set(failed)
        for part in state.parts:
            for row, line in directory.asked_rows(part):
                if row in left:
                    left.discard(row)
                    yield line

    return _with_requests(directory, state, lines(), limits)


def _with_requests(
    directory: BatchDirectory, state: BatchState, lines: Iterator[str], limits: BatchLimits
) -> BatchState:
    """Write further request files, and the state that has them."""
    parts = directory.write_requests(lines, first=len(state.parts) + 1, limits=limits)
    state = replace(state, parts=(*state.parts, *parts))
    directory.save(state)
    return state
