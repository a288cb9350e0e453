"""Jobs at a provider's batch interface: submit, status, collect and retry."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from calibrant.core._errors import ConfigurationError, ProviderError, StateError
from calibrant.core._files import atomic_writer
from calibrant.core._prediction import LogprobSpace, Outcome, Prediction
from calibrant.core._rows import Example
from calibrant.evaluation._data import NO_TEXT
from calibrant.evaluation._provider_batch_answers import BatchAnswers, finisher
from calibrant.evaluation._provider_batch_state import (
    BatchJob,
    BatchLimits,
    BatchPart,
    BatchReport,
    Polling,
    custom_id,
    locked_job,
)
from calibrant.inference import RetryPolicy
from calibrant.inference._base import run_sync
from calibrant.inference._classifier import Classifier
from calibrant.inference._methods import Decoding
from calibrant.inference._models import BatchApi, RemoteBatch, open_batch_api
from calibrant.runs._directory import PREDICTIONS, differing_keys
from calibrant.runs._rows import row_line

_LOG = logging.getLogger("calibrant")
_NOT_SENT: Final = ("api_key", "api_base", "timeout")


def submit_batch(
    classifier: Classifier,
    rows: Iterable[Example],
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
        Built from a model's name; decodes. Its head and its label-prior correction are kept in the directory, and
        applied to the collected answers.
    rows : iterable of Example
        Its texts; an answer may be empty. They are read twice, and never all in memory; an iterator is.
    out : Path
        Directory of the job.
    limits : BatchLimits, optional
        Size limits of a request file; by default those of OpenAI.
    retry : RetryPolicy, optional
        Retries of passing faults.

    Returns
    -------
    BatchReport
        The state of the job.

    Raises
    ------
    ConfigurationError
        The model has no batch interface, does not decode, or there are no rows.
    StateError
        The directory holds something else, or a job of another task, prompt, model or data.
    ProviderError
        The provider cannot be reached, or refuses; nothing that was sent is lost.

    Examples
    --------
    It needs a provider and its key:

    >>> from pathlib import Path
    >>> from calibrant import Classifier, Example
    >>> from calibrant.evaluation import submit_batch
    >>> classifier = Classifier(model="openai/gpt-4.1-mini", labels=["cat", "dog"], field="category")  # doctest: +SKIP
    >>> report = submit_batch(classifier, [Example(input="purrs", answer="")], out=Path("job"))  # doctest: +SKIP
    >>> report.rows, report.submitted  # doctest: +SKIP
    (1, 1)
    """
    classifier = classifier.unless_told()
    if not isinstance(classifier.method, Decoding) or classifier.space is LogprobSpace.FUSED:
        raise ConfigurationError(
            f"Expected a model that decodes, got {type(classifier.method).__name__} for {classifier.name}: a batch "
            "asks once per row. Set scoring = 'decode' under [model], or classify without the batch interface."
        )
    if iter(rows) is rows:
        rows = list(rows)
    count, digest = _counted(rows)
    if not count:
        raise ConfigurationError("Expected at least one row to submit, got none.")
    with (
        closing(open_batch_api(classifier.name, options=classifier.options, retry=retry)) as api,
        locked_job(out, create=True),
    ):
        wanted = _new_job(classifier, classifier.method, api, count, digest, out)
        job = BatchJob.load(out)
        if job is None:
            job = wanted
            job.write_rows(rows)
            classifier.save_learned(out)
            lines = (
                api.line(custom_id(number), classifier.request(classifier.query(row.input)))
                for number, row in enumerate(job.read_rows())
                if row.input or row.answer  # about an unlabelled row without text nothing is asked
            )
            job.add_requests(lines, limits or BatchLimits())
        if differing := differing_keys(job.fingerprint, wanted.fingerprint):
            raise StateError(
                f"{out}: holds a job that differs in {', '.join(differing)}: choose another directory, or submit the "
                "same again."
            )
        return run_sync(_send(api, job))


def batch_status(path: Path, *, api_key: str | None = None, retry: RetryPolicy | None = None) -> BatchReport:
    """Poll every unfinished batch once.

    Parameters
    ----------
    path : Path
        Directory of the job.
    api_key : str, optional
        By default the environment's.
    retry : RetryPolicy, optional
        Retries of passing faults.

    Raises
    ------
    StateError
        The directory holds no job.
    ProviderError
        The provider cannot be asked.

    Examples
    --------
    A directory that holds no job is refused; `submit_batch` makes one:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant.evaluation import batch_status
    >>> from calibrant.core import StateError
    >>> try:
    ...     batch_status(Path(tempfile.mkdtemp()))
    ... except StateError as error:
    ...     print(str(error).partition(": ")[2])
    expected a directory of `calibrant batch submit`, got one without batch.json.

    At a provider:

    >>> batch_status(Path("job")).ended  # doctest: +SKIP
    False
    """
    with _opened_job(path, api_key, retry) as (job, api):
        run_sync(_look(api, job))
        return job.report()


def collect_batch(
    path: Path,
    *,
    wait: Polling | None = None,
    api_key: str | None = None,
    retry: RetryPolicy | None = None,
    on_look: Callable[[BatchReport], None] | None = None,
) -> BatchReport:
    """Fetch the answers of ended batches, and write ``predictions.jsonl`` once all have ended.

    Parameters
    ----------
    path : Path
        Directory of the job.
    wait : Polling, optional
        Wait until every batch has ended; by default there is one look.
    api_key : str, optional
        By default the environment's.
    retry : RetryPolicy, optional
        Retries of passing faults.
    on_look : callable, optional
        Called with the report of each look.

    Returns
    -------
    BatchReport
        Without outcomes if a batch has not ended.

    Raises
    ------
    StateError
        The directory holds no job, or not everything was submitted.
    ProviderError
        The provider cannot be asked, or one of its files is gone.
    CalibrantError
        The directory was moved or removed meanwhile; the message names the directory that keeps the job.

    Examples
    --------
    After `submit_batch`, with looks for an hour at most:

    >>> from pathlib import Path
    >>> from calibrant.evaluation import Polling
    >>> from calibrant.evaluation import collect_batch
    >>> report = collect_batch(Path("job"), wait=Polling(timeout_seconds=3600))  # doctest: +SKIP
    >>> report.outcomes, report.predictions  # doctest: +SKIP
    ({'ok': 1}, PosixPath('job/predictions.jsonl'))
    """
    with _opened_job(path, api_key, retry) as (job, api):
        unsent = [part.number for part in job.parts if part.batch_id is None]
        if unsent:
            raise StateError(
                f"{path}: part {unsent[0]} of {len(job.parts)} was not submitted: run the command that was cut off "
                "(calibrant batch submit or retry) again."
            )
        with job.watched():
            run_sync(_watch(api, job, wait, on_look))
            report = job.report()
            return _join(job, api) if report.ended else report


def retry_batch(
    path: Path,
    *,
    limits: BatchLimits | None = None,
    api_key: str | None = None,
    retry: RetryPolicy | None = None,
) -> BatchReport:
    """Submit the failed rows of a collected job again, with the same requests.

    After a crash, the same call goes on where it stopped.

    Parameters
    ----------
    path : Path
        Directory of the job.
    limits : BatchLimits, optional
        Size limits of a request file; by default those of OpenAI.
    api_key : str, optional
        By default the environment's.
    retry : RetryPolicy, optional
        Retries of passing faults.

    Raises
    ------
    StateError
        The directory holds no job, or not everything was collected.
    ProviderError
        The provider cannot be reached, or refuses.

    Examples
    --------
    After a `collect_batch` whose report counts an error:

    >>> from pathlib import Path
    >>> from calibrant.evaluation import collect_batch
    >>> from calibrant.evaluation import retry_batch
    >>> collect_batch(Path("job")).outcomes  # doctest: +SKIP
    {'ok': 98, 'error': 2}
    >>> retry_batch(Path("job")).submitted  # doctest: +SKIP
    1
    """
    with _opened_job(path, api_key, retry) as (job, api):
        if all(part.batch_id is not None for part in job.parts):
            if not all(part.fetched for part in job.parts):
                raise StateError(f"{path}: not everything was collected: collect first.")
            job.add_requests(_failed_requests(job, api), limits or BatchLimits())
        return run_sync(_send(api, job))


@contextmanager
def _opened_job(
    path: Path, api_key: str | None, retry: RetryPolicy | None
) -> Iterator[tuple[BatchJob, BatchApi]]:
    """Lock the directory of a submitted job and open its provider's interface."""
    with locked_job(path):
        job = BatchJob.load(path)
        if job is None:
            raise StateError(f"{path}: holds no submitted job: submit one first.")
        options = {**job.connection, "api_key": api_key}
        with closing(open_batch_api(options.pop("model"), options=options, retry=retry)) as api:
            yield job, api


def _counted(rows: Iterable[Example]) -> tuple[int, str]:
    """Return the number of rows and the digest of their texts and answers."""
    count, digest = 0, hashlib.sha256()
    for row in rows:
        count += 1
        digest.update(json.dumps([row.input, row.answer]).encode())
    return count, digest.hexdigest()


def _new_job(
    classifier: Classifier, method: Decoding, api: BatchApi, rows: int, digest: str, out: Path
) -> BatchJob:
    """Return a new job; its fingerprint holds digests instead of texts."""
    options = {name: value for name, value in classifier.options.items() if name not in _NOT_SENT}
    about = classifier.describe()
    shown, learned = about.get("demonstrations"), [about.get("head"), about["label_prior"]]
    return BatchJob(
        path=out,
        run=uuid.uuid4().hex,
        created=time.time(),
        rows=rows,
        fingerprint={
            "model": _digest([classifier.name, api.address]),
            "prompt": _digest([classifier.prompt, classifier.user_template, *([shown] if shown else [])]),
            "labels": _digest([method.describe(), classifier.response_format]),
            "options": _digest([options, classifier.top_logprobs]),
            "rows": digest,
            **({"corrections": _digest(learned)} if any(learned) else {}),
        },
        connection={
            "model": classifier.name,
            "api_base": api.address,
            "timeout": classifier.options.get("timeout", 60.0),
        },
        reading=dict(method.reader.describe()),
        described=json.loads(json.dumps(about, default=repr)),
    )


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()


async def _send(api: BatchApi, job: BatchJob) -> BatchReport:
    """Create the batches that do not exist yet; save each step to disk before the next."""
    unsent = [part for part in job.parts if part.batch_id is None]
    for prepared in unsent:
        part = prepared
        if part.file_id is None:
            file_id = await api.upload(job.file("requests", part))
            part = job.save_part(replace(part, file_id=file_id))
        # A call that was begun before a crash may have made the batch.
        look_first = part.asked
        part = job.save_part(replace(part, asked=True))
        batch = await api.create(
            str(part.file_id),
            metadata={"calibrant_run": job.run, "calibrant_part": str(part.number)},
            since=job.created,
            look_first=look_first,
        )
        job.save_part(_as_reported(part, batch))
    return job.report(submitted=len(unsent))


def _as_reported(part: BatchPart, batch: RemoteBatch) -> BatchPart:
    """Return a part in the state that the provider reports."""
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


async def _look(api: BatchApi, job: BatchJob) -> None:
    for part in job.parts:
        if part.batch_id is not None and not part.ended:
            batch = await api.look(part.batch_id)
            job.save_part(_as_reported(part, batch))


async def _fetch(api: BatchApi, job: BatchJob) -> None:
    for part in job.parts:
        if part.ended and not part.fetched:
            for kind, remote in (("answers", part.output_file), ("errors", part.error_file)):
                if remote is not None:
                    await api.download(remote, job.file(kind, part))
            job.save_part(replace(part, fetched=True))


async def _watch(
    api: BatchApi, job: BatchJob, wait: Polling | None, on_look: Callable[[BatchReport], None] | None
) -> None:
    """Poll batches and fetch answers: once, or until every batch has ended or the time is over."""
    start, failures = time.monotonic(), 0
    pause = 0.0 if wait is None else min(wait.seconds, wait.maximum_seconds)
    while True:
        try:
            await _look(api, job)
            await _fetch(api, job)
            failures = 0
        except ProviderError as error:
            failures += 1
            if wait is None or not error.retryable or failures >= wait.failures:
                raise
            _LOG.warning("%s (looking again)", error)
        report = job.report()
        if on_look is not None:
            on_look(report)
        if wait is None or (report.ended and all(part.fetched for part in job.parts)):
            return
        if wait.timeout_seconds is not None:
            left = start + wait.timeout_seconds - time.monotonic()
            if left <= 0:
                return
            pause = min(pause, left)
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, wait.maximum_seconds)


def _join(job: BatchJob, api: BatchApi) -> BatchReport:
    """Write the predictions of all rows in input order, atomically."""
    answers, finish = BatchAnswers(job, api), finisher(job)
    outcomes: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    with atomic_writer(job.path / PREDICTIONS) as file:
        for index, (example, answer) in enumerate(zip(job.read_rows(), answers.predictions(), strict=True)):
            prediction = Prediction(label=None, outcome=Outcome.UNPARSED, reason=NO_TEXT)
            if example.input or example.answer:
                prediction = finish(answer, example.input)
            file.write(row_line(index, example, prediction).decode())
            outcomes[prediction.outcome.value] += 1
            tokens["prompt_tokens"] += prediction.usage.prompt_tokens
            tokens["completion_tokens"] += prediction.usage.completion_tokens
    return replace(
        job.report(),
        outcomes=dict(outcomes),
        prompt_tokens=tokens["prompt_tokens"],
        completion_tokens=tokens["completion_tokens"],
        broken=answers.discarded["broken"],
        unknown=answers.discarded["unknown"],
        duplicates=answers.discarded["duplicates"],
    )


def _failed_requests(job: BatchJob, api: BatchApi) -> Iterator[str]:
    """Yield the requests of the failed rows, each once."""
    predictions = enumerate(BatchAnswers(job, api).predictions())
    failed = {row for row, prediction in predictions if prediction.outcome is Outcome.ERROR}
    for part in job.parts:
        for row, line in job.asked_rows(part):
            if row in failed:
                failed.discard(row)
                yield line
