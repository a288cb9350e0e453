"""Test stage of a search: test rows, result and files."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from calibrant.calibration._saved import DEMONSTRATIONS
from calibrant.core._errors import ProviderError
from calibrant.core._files import write_atomically
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._predictor import Predictor, Query
from calibrant.core._settings import DemonstrationSettings
from calibrant.heads._head import Head
from calibrant.inference._classifier import Classifier
from calibrant.inference._heads import apply_head
from calibrant.inference._loop import ask
from calibrant.optimization._choice import Choice, is_worse
from calibrant.optimization._plan import DEMONSTRATED, USER_TEMPLATE, SearchStage, queries_of
from calibrant.optimization._prompt_parts import COMPONENT
from calibrant.optimization._result import (
    OptimizationResult,
    compare,
    compare_credit,
    final_score,
    score_prompt,
    write_run,
)

LABEL_PRIOR = "label_prior.json"
HEAD = "head.json"


class TestStage(SearchStage):
    """Search stage that scores the test rows and builds the result."""

    def run(
        self, found: Choice, head: Head | None, *, started: float, directory: Path | None
    ) -> OptimizationResult:
        """Return the result of a search begun at `started`; write it into `directory`, if given."""
        predictions = self._test(found, head)
        result = self._result(found, head, predictions, seconds=time.perf_counter() - started)
        if directory is not None:
            self._write(directory, result, found, head, predictions)
        return result

    def _best(self, found: Choice) -> Predictor:
        """Return the predictor under the best prompt, with its demonstrations."""
        best = found.best.candidate
        predictor = self.adapter.predictor.with_prompt(best[COMPONENT], user_template=best.get(USER_TEMPLATE))
        retrieval = predictor.demonstrations if isinstance(predictor, Classifier) else None
        shown = best.get(DEMONSTRATED, "")
        if not isinstance(predictor, Classifier) or retrieval is None or not shown.strip():
            return predictor
        settings = DemonstrationSettings.from_text(shown)
        return predictor.with_demonstrations(retrieval.index, **settings.model_dump())

    def _test(self, found: Choice, head: Head | None) -> dict[str, list[Prediction]]:
        """Return the predictions for the test rows: of both prompts, and as label prior and head change them."""
        seed, best = found.seed.candidate, found.best.candidate
        self.tracker.start_test(len(self.task.test) * (1 if seed == best else 2))
        asked = {"seed": self._predict(seed)}
        asked["best"] = asked["seed"] if seed == best else self._predict(best)
        predictions = {
            name: self._corrected(candidate, asked[name])
            for name, candidate in (("seed", seed), ("best", best))
        }
        if self.plan.races:
            queries = queries_of(seed, self.task.test)
            predictions["prior"] = [
                self.adapter.corrected(*pair) for pair in zip(queries, asked["seed"], strict=True)
            ]
        if head is not None:
            predictions["final"] = [
                apply_head(head, prediction, example.input)
                for prediction, example in zip(asked["best"], self.task.test, strict=True)
            ]
        return predictions

    def _predict(self, candidate: Mapping[str, str]) -> list[Prediction]:
        predictions = ask(
            self.adapter.predictor,
            queries_of(candidate, self.task.test),
            on_prediction=lambda _, prediction: self.tracker.on_prediction(prediction),
        )
        self.adapter.check_failures(predictions)
        if all(prediction.outcome is Outcome.ERROR for prediction in predictions):
            raise ProviderError(
                f"none of the {len(predictions)} test rows was answered: {predictions[0].reason}",
                provider=self.adapter.predictor.name,
                hint="Mend the connection and start the run again; what was answered is kept in its directory.",
            )
        return predictions

    def _corrected(self, candidate: Mapping[str, str], predictions: Sequence[Prediction]) -> list[Prediction]:
        """Return the predictions for the test rows as users get them: without the label prior if the plan says so."""
        pairs = list(zip(queries_of(candidate, self.task.test), predictions, strict=True))
        if self.plan.prior_correction is not None:
            predictions = [self.adapter.corrected(query, prediction) for query, prediction in pairs]
        return [replace(prediction, features=None) for prediction in predictions]

    def _write(
        self,
        directory: Path,
        result: OptimizationResult,
        found: Choice,
        head: Head | None,
        predictions: Mapping[str, Sequence[Prediction]],
    ) -> None:
        """Write the result and the best prompt's files into a directory."""
        kept = {name: list(made) for name, made in predictions.items() if name != "prior"}
        write_run(directory, result, self.task.test, kept, labels=self.task.labels)
        best = self._best(found)
        fingerprint = best.fingerprint()
        shown = best.demonstrations if isinstance(best, Classifier) else None
        if self.plan.prior_correction is not None:
            prior = self.adapter.label_prior(_query_without_text(found.best.candidate))
            if prior is not None:
                prior.save(directory / LABEL_PRIOR, fingerprint=fingerprint)
        if shown is not None and shown.settings is not None:
            write_atomically(directory / DEMONSTRATIONS, shown.index.to_text())
        if head is not None:
            head.save(directory / HEAD, fingerprint=fingerprint)

    def _result(
        self,
        found: Choice,
        head: Head | None,
        predictions: Mapping[str, Sequence[Prediction]],
        *,
        seconds: float,
    ) -> OptimizationResult:
        """Put the numbers together."""
        labels = self.task.labels
        seed, best = (
            score_prompt(
                one.candidate[COMPONENT], one.score, self.task.test, predictions[name], labels=labels
            )
            for name, one in (("seed", found.seed), ("best", found.best))
        )
        comparison = compare(self.task.test, predictions["seed"], predictions["best"])
        credit = compare_credit(self.task.test, predictions["seed"], predictions["best"], labels=labels)
        final = None if head is None else final_score(self.task, head, found, predictions)
        # Where the heads decided, the prompt with its head is what was chosen.
        tested = comparison if final is None or not found.decided_by_head else final.against_seed
        costs = [self.tracker.now.cost, None if self.reflection is None else self.reflection.total_cost]
        known = [cost for cost in costs if cost is not None]
        return OptimizationResult(
            task=self.task.name,
            model=self.adapter.predictor.name,
            seed=self.plan.seed,
            proposer=self.plan.name,
            seed_prompt=seed,
            best_prompt=best,
            best_candidate=found.best.candidate,
            improved=found.chosen != 0 and not is_worse(tested, credit),
            comparison=comparison,
            metric_calls=self.adapter.metric_calls,
            proposals=self.tracker.now.proposals,
            accepted=self.tracker.now.accepted,
            completions=self.adapter.completions,
            completions_without_logprobs=self.adapter.completions_without_logprobs,
            cost=sum(known) if known else None,
            seconds=seconds,
            thresholds=self.adapter.suggested_thresholds,
            credit_difference=credit,
            validated=found.validated,
            chosen=found.chosen,
            by_head=found.by_head,
            detectable_gain=self.plan.detectable_gain(self.task),
            final=final,
        )


def _query_without_text(candidate: Mapping[str, str]) -> Query:
    """Return a candidate's query without a text, the key of its label prior."""
    return Query(
        prompt=candidate[COMPONENT],
        text="",
        user_template=candidate.get(USER_TEMPLATE),
        demonstrations=candidate.get(DEMONSTRATED),
    )
