"""Stages after a search: fitting heads for the best prompts, and scoring the test rows."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import and_
from pathlib import Path
from typing import Any, Final, TypeAlias

from numpy.typing import ArrayLike

from calibrant.adapters._rows import DEMONSTRATED, USER_TEMPLATE
from calibrant.calibration._calibrators import ConfidenceCalibrator, load_calibrator
from calibrant.calibration._prior import LabelPriorCorrection
from calibrant.core._errors import DataError, ProviderError, StateError
from calibrant.core._files import atomic_bytes_writer, read_run_record, write_atomically
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import Interval, Outcome, Prediction, Usage
from calibrant.core._predictor import Predictor
from calibrant.core._rows import Example
from calibrant.core._settings import DemonstrationSettings
from calibrant.core._task import RecordedTask, Task
from calibrant.evaluation._data import write_demonstrations
from calibrant.evaluation._figures import measurements_of
from calibrant.evaluation._learned import calibrate_predictions, calibrate_search
from calibrant.evaluation._looks import CertificateRequest
from calibrant.heads._head import Head
from calibrant.heads._linear import EmbeddingModel
from calibrant.heads._tuned import Tuned, thresholds_of
from calibrant.inference._base import ask
from calibrant.inference._classifier import Classifier
from calibrant.inference._heads import apply_head_to_all, head_of
from calibrant.inference._models import public_model, task_settings
from calibrant.inference._text_vectors import vectors_by_text
from calibrant.metrics._intervals import PairedComparison
from calibrant.optimization._choice import (
    BETTER,
    FIRST,
    CandidateStanding,
    Choice,
    HeadChoice,
    ValidatedCandidate,
    beats,
)
from calibrant.optimization._plan import PERFECT, SCREENED, SearchStage, known_texts, queries_of
from calibrant.optimization._prompt_parts import COMPONENT, CandidateTexts, ShownTexts, without_texts_of
from calibrant.optimization._result import (
    FinalScore,
    OptimizationResult,
    compare,
    final_score,
    score_prompt,
)
from calibrant.runs._directory import CALIBRATION, PREDICTIONS, write_settings
from calibrant.runs._rows import BEST, FINAL, SEED, SavedRows, record_line, row_record

_LOG: Final = logging.getLogger("calibrant")
_READ: Final = 2_000  # labelled rows: the embedded engine takes a fifth of a second for a vector
_FEWEST: Final = SCREENED + FIRST  # validation rows that compare two heads; fewer make no race either
# Calibration of the test rows, as JSON values, and its calibrator.
_Calibrated: TypeAlias = tuple[Mapping[str, Any] | None, ConfidenceCalibrator | None]


@dataclass(kw_only=True)
class HeadStage(SearchStage):
    """Search stage that fits a head on labelled rows.

    Parameters
    ----------
    embedding : EmbeddingModel or None
        Reads texts for heads, beside their words.
    max_metric_calls : int
        Upper bound of the adapter's calls, those of the search included; 0 where no row may be asked.

    Attributes
    ----------
    head : Head or None
        The head learned under the best candidate.
    features : dict of str to array-like
        The model's features of the rows that it learned from, and of test rows, by text.
    """

    embedding: EmbeddingModel | None
    max_metric_calls: int
    head: Head | None = field(default=None, init=False)
    features: dict[str, ArrayLike] = field(default_factory=dict, init=False)

    def run(self, choice: Choice) -> Choice:
        """Return the final choice of candidate; learn a head under it where that is possible.

        Validation rows come first, then training rows, as far as the budget goes.
        """
        if self.task.head.fit != "auto" or not isinstance(self.adapter.predictor, Classifier):
            return choice
        # Where nothing is wrong there is nothing to learn that would be worth a call.
        worth = not self._is_perfect(choice.best)
        choice = self._compared(choice) if worth else choice
        candidate = choice.best.candidate
        rows = labelled_rows(self.task, candidate[COMPONENT])
        calls = self._calls_left() if worth else 0
        asked = self.adapter.affordable(queries_of(candidate, rows), calls)
        rows = list(compress(rows, asked))
        predictions = self.adapter.ask(queries_of(candidate, rows))
        if not any(prediction.distribution is not None for prediction in predictions):
            return choice
        self.features = _features_of(rows, predictions)
        self.head = self._fit(rows, predictions)
        return choice

    def vectors_by_text(self) -> Mapping[str, ArrayLike] | None:
        """Return the model's features of the texts that it was asked about, or else the embedding model's vectors."""
        if self.features:
            return self.features
        texts = texts_to_read(self.task, self.max_metric_calls)
        return vectors_by_text(self.embedding, texts, meter=self.meter)

    def _is_perfect(self, best: ValidatedCandidate) -> bool:
        enough = min(len(self.task.validation), _FEWEST)
        if best.rows is None:
            return best.score >= PERFECT
        return best.accuracy == 1.0 and best.rows >= enough

    def _compared(self, choice: Choice) -> Choice:
        """Choose again between the best two candidates of the race, each with its own head.

        A race compares candidates without their heads, which may make more of the one that came second. They are
        compared on validation rows, which the race has asked about for the most part: training rows are asked under
        one alone.
        """
        if choice.second is None or not self.max_metric_calls:
            return choice
        pair = [choice.best.candidate, choice.validated[choice.second].candidate]
        kept: list[Example] = []
        of_raced: list[Prediction] = []
        of_other: list[Prediction] = []
        rows = self._asked_under_both(pair)
        answers = [self.adapter.ask(queries_of(candidate, rows)) for candidate in pair]
        for row, first, second in zip(rows, *answers, strict=True):
            if first.distribution is not None and second.distribution is not None:
                kept.append(row)
                of_raced.append(first)
                of_other.append(second)
        if len(kept) < _FEWEST:
            return choice
        raced = _standing(self._fit(kept, of_raced))
        other = _standing(self._fit(kept, of_other))
        by_head = HeadChoice(
            raced=choice.chosen,
            other=choice.second,
            rows=len(kept),
            raced_log_loss=raced.loss,
            other_log_loss=other.loss,
            raced_accuracy=raced.accuracy,
            other_accuracy=other.accuracy,
            chosen=choice.second if beats(other, raced, errors=BETTER) else choice.chosen,
        )
        return replace(choice, chosen=by_head.chosen, by_head=by_head)

    def _asked_under_both(self, pair: Sequence[CandidateTexts]) -> list[Example]:
        """Return the validation rows that the budget allows under both candidates; [] if they are too few.

        Whichever of them is kept, all rows that teach its head are paid first.
        """
        held_out = {row.input for row in self.task.validation}
        every = [labelled_rows(self.task, candidate[COMPONENT]) for candidate in pair]
        shared = [row for row in every[0] if row.input in held_out]  # the first rows of both
        for kept, other in ((0, 1), (1, 0)):
            own = queries_of(pair[kept], every[kept])
            others = queries_of(pair[other], shared)
            paid = self.adapter.affordable(own + others, self._calls_left())
            paid_under_both = map(and_, paid[: len(shared)], paid[len(own) :])
            shared = list(compress(shared, paid_under_both))
        return shared if len(shared) >= _FEWEST else []

    def _calls_left(self) -> int:
        return self.max_metric_calls - self.adapter.metric_calls

    def _fit(self, rows: Sequence[Example], predictions: Sequence[Prediction]) -> Head:
        answers = [row.answer for row in rows]
        texts = [row.input for row in rows]
        return head_of(
            predictions,
            answers,
            texts,
            labels=self.task.labels,
            embedding=self.embedding,
            meter=self.meter,
        )


def _standing(head: Head) -> CandidateStanding:
    """Return cross-validated losses and figures of a head on its training rows."""
    assert head.held_out_losses is not None  # noqa: S101 (only of fewer rows than are ever compared)
    figures = next(one for one in head.figures if one.name == head.kind)
    return CandidateStanding(
        losses=head.held_out_losses, accuracy=figures.accuracy, macro_f1=figures.macro_f1
    )


def texts_to_read(task: Task, max_metric_calls: int) -> list[str]:
    """Return the texts whose vectors heads and their baseline read: test rows, and the labelled rows that teach both.

    The latter are validation rows and as many training rows as the search may ask about; where these are fewer than
    2,000, the others at even distances.
    """
    taught = [*task.validation, *task.train[:max_metric_calls]]
    others = task.train[max_metric_calls:]
    room = _READ - len(taught)
    if others and room > 0:
        taught += others[:: -(-len(others) // room)]
    return [row.input for row in (*taught, *task.test)]


def labelled_rows(task: Task, prompt: str) -> list[Example]:
    """Return the training rows of a head: validation rows, then training rows not in the prompt.

    A row whose text is that of a test row, but for case and white space, is none of them.
    """
    if task.labels.holds_several:
        return []
    shown = ShownTexts(prompt, task)
    validation = without_texts_of(task.validation, task.test)
    others = without_texts_of(task.train, (*validation, *task.test))
    return validation + [row for row in others if row.input not in shown]


def _features_of(rows: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, ArrayLike]:
    """Return the model's features by text, of the rows that have some."""
    return {
        row.input: prediction.features
        for row, prediction in zip(rows, predictions, strict=True)
        if prediction.features is not None
    }


def _write_task(directory: Path, task: Task) -> None:
    """Write the settings of the task of a search, without credentials, into its directory."""
    left_out: dict[str, list[str]] = {}
    public = replace(task, model=public_model(task.model, left_out=left_out))
    record = {**task_settings(public), "left_out": left_out}
    write_settings(directory, {"tasks": [record], "plan": None, "prompt_for_all": True})


@dataclass(kw_only=True)
class FinalStage(SearchStage):
    """Search stage that scores the test rows and builds the result.

    Parameters
    ----------
    directory : Path or None
        The run directory.
    choice : Choice
        The choice of the best candidate.
    heads : HeadStage
        The stage that learned a head under it.
    ended : str
        Why the search ended before its budget was used up; may be empty.
    """

    directory: Path | None
    choice: Choice
    heads: HeadStage
    ended: str

    @property
    def head(self) -> Head | None:
        """The head learned under the best candidate."""
        return self.heads.head

    def run(
        self, asked: Task, *, started: float, certificate: CertificateRequest | None
    ) -> OptimizationResult:
        """Score and certify the test rows; return the result, and write it to the run directory if there is one.

        `asked` is the task with the model that was asked, which may not be its own.
        """
        predictions = self._test()
        result = self._result(predictions, seconds=time.perf_counter() - started)
        best = self._best()
        if self.directory is not None:
            self._write(self.directory, result, best)
            if not asked.sections:  # those are written down by whoever knows them
                _write_task(self.directory, asked)
        saved = result.test_rows[BEST if self.head is None else FINAL]
        if saved.space is not None:
            saved = replace(saved, fingerprint=replace(best.fingerprint(), space=saved.space))
        calibrated = self._calibrated(saved, certificate)
        return replace(result, tuned=self._tuned(asked, result, saved, best, calibrated))

    def _best(self) -> Predictor:
        """Return the predictor under the best prompt, with its demonstrations."""
        best = self.choice.best.candidate
        template = best.get(USER_TEMPLATE)
        predictor = self.adapter.predictor.with_prompt(best[COMPONENT], user_template=template)
        shown = best.get(DEMONSTRATED, "")
        if not isinstance(predictor, Classifier) or predictor.demonstrations is None or not shown.strip():
            return predictor
        settings = DemonstrationSettings.from_text(shown)
        return predictor.with_demonstrations(predictor.demonstrations.index, **settings.model_dump())

    def _test(self) -> dict[str, list[Prediction]]:
        """Return test predictions by name: ``seed``, ``best`` and, if used, ``prior`` and ``final``."""
        seed = self.choice.seed.candidate
        best = self.choice.best.candidate
        n_prompts = 1 if seed == best else 2
        self.tracker.start_test(n_prompts * len(self.task.test))
        of_seed = self._predict(seed)
        of_best = of_seed if seed == best else self._predict(best)
        predictions = {"seed": self._corrected(seed, of_seed), "best": self._corrected(best, of_best)}
        if self.plan.races:
            predictions["prior"] = self._without_prior(seed, of_seed)
        if self.head is not None:
            texts = [example.input for example in self.task.test]
            predictions["final"] = apply_head_to_all(self.head, of_best, texts, meter=self.meter)
            self.heads.features |= _features_of(self.task.test, of_best)
        return predictions

    def _predict(self, candidate: CandidateTexts) -> list[Prediction]:
        predictions = ask(
            self.adapter.predictor,
            queries_of(candidate, self.task.test),
            on_prediction=lambda _, prediction: self.tracker.on_prediction(prediction),
            stop=self.adapter.stop,
        )
        self.adapter.check_failures(predictions)
        if all(prediction.outcome is Outcome.ERROR for prediction in predictions):
            raise ProviderError(
                f"none of the {len(predictions)} test rows was answered: {predictions[0].reason}",
                provider=self.adapter.predictor.name,
                hint="Mend the connection and start the run again; what was answered is kept in its directory.",
            )
        return predictions

    def _corrected(self, candidate: CandidateTexts, predictions: Sequence[Prediction]) -> list[Prediction]:
        """Return the test predictions, corrected for the label prior if the plan says so."""
        if self.plan.prior_correction is not None:
            predictions = self._without_prior(candidate, predictions)
        return [replace(prediction, features=None) for prediction in predictions]

    def _without_prior(
        self, candidate: CandidateTexts, predictions: Sequence[Prediction]
    ) -> list[Prediction]:
        """Return the test predictions without the label prior of a candidate."""
        queries = queries_of(candidate, self.task.test)
        return list(map(self.adapter.corrected, queries, predictions))

    def _write(self, directory: Path, result: OptimizationResult, best: Predictor) -> None:
        """Write the result, the predictions and the best prompt's files to a directory, atomically."""
        with atomic_bytes_writer(directory / PREDICTIONS) as file:
            for saved in result.test_rows.values():
                file.writelines(record_line(row.values) for row in saved.rows())
        write_atomically(directory / "best_prompt.txt", result.best_prompt.prompt)
        record = {**result.to_record(), "label_set": self.task.labels.record()}
        write_atomically(directory / "result.json", json.dumps(record, indent=2, ensure_ascii=False))
        fingerprint = best.fingerprint()
        prior = self._label_prior()
        if prior is not None:
            prior.save(directory / "label_prior.json", fingerprint=fingerprint)
        write_demonstrations(best, directory)
        if self.head is not None:
            self.head.save(directory / "head.json", fingerprint=fingerprint)

    def _test_rows(self, predictions: Mapping[str, Sequence[Prediction]]) -> dict[str, SavedRows]:
        """Return the test rows with their predictions, by prompt."""
        name = self.task.name if self.directory is None else str(self.directory)
        saved = {}
        for prompt in (SEED, BEST, FINAL):
            if prompt in predictions:
                pairs = zip(self.task.test, predictions[prompt], strict=True)
                records = [row_record(index, *pair, prompt=prompt) for index, pair in enumerate(pairs)]
                saved[prompt] = SavedRows.of(records, name=name)
        return saved

    def _label_prior(self) -> LabelPriorCorrection | None:
        """Return the label prior under the best prompt, which is the same for every row."""
        if self.plan.prior_correction is None:
            return None
        queries = queries_of(self.choice.best.candidate, self.task.test[:1])
        return self.adapter.label_prior(queries[0])

    def _tuned(
        self,
        asked: Task,
        result: OptimizationResult,
        saved: SavedRows,
        best: Predictor,
        calibrated: _Calibrated,
    ) -> Tuned:
        """Return the final classifier as a value, with calibration and calibrator of the test rows."""
        calibration, calibrator = calibrated
        thresholds = thresholds_of(calibration)
        # A cascade decides by the thresholds between its models.
        in_turn = "cascade" in asked.sections
        measurements = measurements_of(
            saved,
            self.task.labels,
            search=result.to_record(),
            calibration=calibration,
            thresholds=None if in_turn else thresholds,
        ).knowing(known_texts(self.task))
        return Tuned(
            path=self.directory,
            tasks=(RecordedTask(task=self._tuned_task(asked, best)),),
            prompt_for_all=True,
            fingerprint=best.fingerprint(),
            head=self.head,
            prior_correction=self._label_prior() if self.head is None else None,
            calibrator=calibrator,
            thresholds=thresholds,
            measurements=measurements,
        )

    def _tuned_task(self, asked: Task, best: Predictor) -> Task:
        """Return the task under the best prompt, whose training rows are its demonstrations."""
        candidate = self.choice.best.candidate
        shown = best.demonstrations if isinstance(best, Classifier) else None
        settings = None if shown is None else shown.settings
        return Task(
            name=asked.name,
            labels=asked.labels,
            prompt=candidate[COMPONENT],
            label_descriptions=asked.label_descriptions,
            field=asked.field,
            user_template=candidate.get(USER_TEMPLATE),
            model=asked.model,
            sections=asked.sections,
            demonstrations=settings,
            columns=asked.columns,
            train=() if shown is None or settings is None else shown.index.examples(),
        )

    def _calibrated(self, saved: SavedRows, certificate: CertificateRequest | None) -> _Calibrated:
        """Return calibration and calibrator of the test rows, which neither the prompt nor its head saw.

        A calibration that the user made in the run directory stays.
        """
        directory = self.directory
        if directory is not None and (directory / CALIBRATION).exists():
            return _own_calibration(directory, saved.fingerprint)
        if directory is not None:
            # So that the ledger has a copy beside the run.
            saved = replace(saved, path=directory / PREDICTIONS)
        try:
            calibration = calibrate_search(saved, certificate)
        except DataError:  # too few rows teach nothing
            return None, None
        except StateError as error:  # the ledger of certificates; the search is paid for
            _LOG.warning("Nothing is certified: %s", error)
            calibration = calibrate_predictions(saved)
        if directory is not None:
            calibration.write(directory)
        return calibration.to_record(), calibration.selection.calibrator

    def _final_score(self, predictions: Mapping[str, Sequence[Prediction]]) -> FinalScore | None:
        """Return the test figures with the head that was learned; None without one."""
        if self.head is None:
            return None
        vectors = self.heads.vectors_by_text()
        return final_score(self.task, self.head, self.choice, predictions, vectors=vectors)

    def _cost(self) -> float | None:
        """Return the US dollars of answers and reflection; None where no price is known."""
        costs = [self.tracker.now.cost]
        if self.reflection is not None:
            costs.append(self.reflection.total_cost)
        known = [cost for cost in costs if cost is not None]
        return sum(known) if known else None

    def _unpriced_calls(self) -> int:
        """Return the number of calls without a known price, those of the reflection model included."""
        unpriced = 0
        if not self.tracker.now.in_process:
            unpriced = self.tracker.unpriced_calls
        if self.reflection is not None and self.reflection.total_cost is None:
            unpriced += self.reflection.calls
        return unpriced

    def _result(
        self, predictions: Mapping[str, Sequence[Prediction]], *, seconds: float
    ) -> OptimizationResult:
        """Return the result of the search, given the test predictions."""
        choice = self.choice
        rows = self.task.test
        labels = self.task.labels
        made_seed = predictions["seed"]
        made_best = predictions["best"]
        comparison, credit = compare(rows, made_seed, made_best, labels=labels)
        final = self._final_score(predictions)
        now = self.tracker.now
        return OptimizationResult(
            task=self.task.name,
            model=self.adapter.predictor.name,
            seed=self.plan.seed,
            proposer=self.plan.name,
            seed_prompt=score_prompt(choice.seed, rows, made_seed, labels=labels),
            best_prompt=score_prompt(choice.best, rows, made_best, labels=labels),
            best_candidate=choice.best.candidate,
            improved=_is_better(final, comparison, credit),
            comparison=comparison,
            metric_calls=self.adapter.metric_calls,
            proposals=now.proposals,
            accepted=now.accepted,
            completions=self.adapter.completions,
            completions_without_logprobs=self.adapter.completions_without_logprobs,
            cost=self._cost(),
            unpriced_calls=self._unpriced_calls(),
            vectors=Usage() if self.meter is None else self.meter.vectors,
            in_process=now.in_process and self.reflection is None,
            ended=self.ended,
            directory=self.directory,
            seconds=seconds,
            thresholds=self.adapter.suggested_thresholds,
            credit_difference=credit,
            validated=choice.validated,
            chosen=choice.chosen,
            by_head=choice.by_head,
            detectable_gain=self.plan.detectable_gain,
            final=final,
            test_rows=self._test_rows(predictions),
        )


def _own_calibration(directory: Path, fingerprint: Fingerprint | None) -> _Calibrated:
    """Return the calibration in a run directory; (None, None) if it is that of other predictions."""
    record = read_run_record(directory / CALIBRATION, remedy="calibrate the run again")
    if fingerprint is None or record.get("fingerprint") != fingerprint.to_record():
        return None, None
    path = directory / "calibrator.json"
    return record, load_calibrator(path, fingerprint=fingerprint) if path.exists() else None


def _is_better(
    final: FinalScore | None, comparison: PairedComparison | None, credit: Interval | None
) -> bool:
    """Return True if the test rows show that what the user gets is better than the seed prompt alone.

    That is the best prompt with its head, where there is one.
    """
    if final is not None:
        comparison = final.against_seed
        credit = None
    intervals = [None if comparison is None else comparison.interval, credit]
    known = [interval for interval in intervals if interval is not None]
    is_worse = any(interval.upper < 0.0 for interval in known)
    return not is_worse and any(interval.lower > 0.0 for interval in known)
