"""Search: GEPA proposes prompts on training rows; a race or scores on validation rows decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from calibrant.adapters._gepa import REFLECTION_TEMPLATE, decides
from calibrant.adapters._rows import DEMONSTRATED, USER_TEMPLATE, ConfidenceDataInst, example_row
from calibrant.core._labels import (
    LABEL_DESCRIPTIONS,
    LabelSet,
    description_lines,
    split_label_list,
    takes_descriptions,
)
from calibrant.core._prediction import FloatArray, Outcome, Prediction
from calibrant.core._rows import Example
from calibrant.core._task import Task
from calibrant.optimization._choice import (
    FIRST,
    CandidateStanding,
    Choice,
    ValidatedCandidate,
    ValidationLog,
    answered_rows,
    beats,
    choose,
    gain,
    race,
    race_calls,
    row_scores,
    standing,
)
from calibrant.optimization._plan import SearchPlan, SearchStage, queries_of
from calibrant.optimization._prompt_parts import (
    COMPONENT,
    DESCRIBED,
    CandidateTexts,
    NewAndBetter,
    NoCopies,
    given_prompts,
)
from calibrant.optimization._proposers import Guard

if TYPE_CHECKING:
    from gepa.core.callbacks import ProposalEndEvent
    from gepa.core.result import GEPAResult
    from gepa.core.state import GEPAState
    from gepa.proposer.reflective_mutation.base import ReflectionComponentSelector

    from calibrant.core._predictor import Query

    _Stopper: TypeAlias = Callable[[GEPAState[object, int]], bool]

RACED: Final = 3
"""Candidates that are raced beside the seed, at most."""

_HOPELESS: Final = -1.0  # standard errors on the screened rows, below which a candidate is not raced

_MOST_REPEATS: Final = 5
"""Proposals in a row that a search has seen before, after which no new one can be expected."""

_UNASKED: Final = Prediction(label=None, outcome=Outcome.ERROR, reason="the budget is used up")


def race_reserve(task: Task, plan: SearchPlan) -> int:
    """Return the maximum number of metric calls to reserve for the race."""
    return race_calls(RACED, len(task.validation) - plan.screened_rows)


@dataclass(kw_only=True)
class Search(SearchStage):
    """Search for a better prompt, on training and validation rows.

    Parameters
    ----------
    directory : Path or None
        The run directory, which takes GEPA's log.
    max_metric_calls : int
        Upper bound of the calls.
    seen : ValidationLog
        Observer of the adapter: predictions on validation rows, where there is no race.

    Attributes
    ----------
    ended : str
        Sentences on an end before the budget was used up, and on rejected proposals; empty without either.
    """

    directory: Path | None
    max_metric_calls: int
    seen: ValidationLog
    _predictions_by_query: dict[Query, Prediction] = field(default_factory=dict, init=False)
    _is_perfect: bool = field(default=False, init=False)
    ended: str = field(default="", init=False)

    @cached_property
    def _seed(self) -> dict[str, str]:
        """Seed candidate: prompt and, where there are any, user template, demonstrations and label descriptions."""
        candidate = {COMPONENT: self.task.prompt}
        if self.task.user_template is not None:
            candidate[USER_TEMPLATE] = self.task.user_template
        if self.task.demonstrations is not None:
            candidate[DEMONSTRATED] = self.task.demonstrations.to_text()
        if self.reflection is None or not takes_descriptions(self.task.labels):
            return candidate
        if decides(self.adapter.predictor):
            prompt, listed = split_label_list(self.task.prompt, self.task.labels)
            lines = description_lines(listed or {}, self.task.labels)
            return {**candidate, COMPONENT: prompt, LABEL_DESCRIPTIONS: lines}
        if self.task.label_descriptions:  # what is given is tried against none
            candidate[LABEL_DESCRIPTIONS] = description_lines({}, self.task.labels)
        return candidate

    @cached_property
    def _given(self) -> list[dict[str, str]]:
        """Candidates of the task beside the seed."""
        candidates = []
        for name, prompt in given_prompts(self.task).items():
            changed = {COMPONENT: prompt}
            if name == DESCRIBED and LABEL_DESCRIPTIONS in self._seed:
                lines = description_lines(self.task.label_descriptions, self.task.labels)
                changed = {LABEL_DESCRIPTIONS: lines}
            candidates.append({**self._seed, **changed})
        return candidates

    @cached_property
    def _validation(self) -> list[Example]:
        """Validation rows; for a race, in an order drawn with the plan's seed."""
        rows = list(self.task.validation)
        if not self.plan.races:
            return rows
        # Rows of one label may stand together in a file.
        order = np.random.default_rng(self.plan.seed).permutation(len(rows))
        return [rows[place] for place in order]

    @property
    def _screened(self) -> list[Example]:
        return self._validation[: self.plan.screened_rows]

    @property
    def _fresh(self) -> list[Example]:
        return self._validation[self.plan.screened_rows :]

    def run(self, *, for_race: int) -> Choice:
        """Run GEPA on the budget less the reserve for the race; return the choice of the best prompt."""
        searched = self._propose(self.max_metric_calls - for_race)
        if self.plan.races:
            choice = self._race(searched)
        else:
            scored = zip(searched.candidates, searched.val_aggregate_scores, strict=True)
            validated = []
            for candidate, score in scored:
                predictions = self.seen.predictions(candidate)
                described = self.adapter.described(candidate)
                validated.append(self._validated(described, score, self._screened, predictions))
            choice = choose(validated)
        return replace(choice, validated=tuple(map(self._named, choice.validated)))

    def _named(self, validated: ValidatedCandidate) -> ValidatedCandidate:
        """Return a candidate with its name, if the task gave its prompt."""
        prompt = validated.candidate[COMPONENT]
        if {**validated.candidate, COMPONENT: ""} != {**self.adapter.described(self._seed), COMPONENT: ""}:
            return validated
        names = {given: name for name, given in given_prompts(self.task).items()}
        return replace(validated, origin=names.get(prompt))

    def _propose(self, max_metric_calls: int) -> GEPAResult[object, object]:
        """Run GEPA, which scores each accepted prompt on the same validation rows."""
        import gepa  # noqa: PLC0415  (heavy)

        guard: Guard | None = self.reflection
        if self.plan.proposer is not None:
            guard = Guard(self.plan.proposer, name=f"proposer {self.plan.name}", hint="Mend the proposer.")
            self.adapter.propose_new_texts = guard
        valset = [example_row(example) for example in self._screened]
        budget = self.adapter.budget(max_metric_calls, valset=valset, minibatch_size=self.plan.minibatch_size)
        repeats = self._repeat_watch()
        criterion = NoCopies(self.task) if self.plan.races else NewAndBetter()
        # Before the budget, which must know what these ask.
        stoppers: list[_Stopper] = [_once(lambda _state: self.plan.races and self._nothing_wrong())]
        if not self._fresh:
            stoppers.append(self.tracker.should_stop)
        stoppers.append(_once(lambda state: self._add_given_prompts(state, valset, max_metric_calls)))
        stoppers.append(budget)
        if guard is not None:
            stoppers.append(guard.should_stop)
        stoppers.append(repeats.should_stop)
        searched = gepa.optimize(
            seed_candidate=self._seed,
            trainset=[example_row(example) for example in self.task.train],
            valset=valset,
            adapter=self.adapter,
            reflection_lm=self.reflection,
            reflection_prompt_template=(
                {LABEL_DESCRIPTIONS: REFLECTION_TEMPLATE} if LABEL_DESCRIPTIONS in self._seed else None
            ),
            reflection_minibatch_size=self.plan.minibatch_size,
            module_selector="all" if self.reflection is None else _texts_in_turn(),
            stop_callbacks=stoppers,
            acceptance_criterion=criterion,
            callbacks=[self.tracker, repeats],
            logger=_FileLogger(self.directory),
            track_best_outputs=False,
            seed=self.plan.seed,
        )
        if guard is not None and guard.error is not None:
            raise guard.error
        self.ended = " ".join(filter(None, [repeats.sentence, criterion.sentence]))
        return searched

    def _repeat_watch(self) -> RepeatWatch:
        """Return the watch for proposals that repeat texts of earlier candidates."""
        # The exemplar proposer costs nothing, and has other ideas on other rows.
        most = None if self.plan.name == "exemplar" else _MOST_REPEATS
        writer = "the reflection model" if self.reflection is not None else "the proposer"
        return RepeatWatch([self._seed, *self._given], writer=writer, most=most)

    def _add_given_prompts(
        self, state: GEPAState[object, int], valset: list[ConfidenceDataInst], max_metric_calls: int
    ) -> bool:
        """Score the task's other prompts and add them to GEPA's state; always return False.

        GEPA takes one seed prompt. As proposals they would be turned down where a few training rows do not speak for
        them, and count as proposals.
        """
        from gepa.core.state import ValsetEvaluation  # noqa: PLC0415  (heavy)

        for candidate in self._given:
            if self.adapter.metric_calls + len(valset) > max_metric_calls:
                break
            scores = self.adapter.evaluate(valset, candidate).scores
            state.increment_evals(len(scores))
            evaluation: ValsetEvaluation[object, int] = ValsetEvaluation({}, dict(enumerate(scores)))
            state.update_state_with_new_program([0], candidate, evaluation, None, state.total_num_evals)
            self.tracker.validated(sum(scores) / len(scores))
        return False

    def _nothing_wrong(self) -> bool:
        """Return True if the seed prompt makes no error on its first validation rows."""
        first = len(self._screened)
        rows = (self._validation[:first], self._validation[: first + FIRST])
        seed = self.adapter.described(self._seed)
        self._is_perfect = all(self._standing(seed, some).accuracy == 1.0 for some in rows)
        return self._is_perfect

    def _race(self, searched: GEPAResult[object, object]) -> Choice:
        """Run a race of the best screened candidates on unused validation rows."""
        candidates = list(map(self.adapter.described, searched.candidates))
        screened = self._screened
        fresh = self._fresh
        first = [self._standing(candidate, screened) for candidate in candidates]
        raced = [0, *_promising(first)[:RACED]]
        asked = [list(screened) for _ in candidates]
        if self._is_perfect:
            asked[0] = [*screened, *fresh[:FIRST]]

        def stand(position: int, n: int) -> CandidateStanding:
            number = raced[position]
            asked[number] = [*screened, *fresh[:n]]
            return self._standing(candidates[number], fresh[:n])

        def affordable(positions: Sequence[int], n: int) -> bool:
            wanted: list[Query] = []
            for position in positions:
                wanted += queries_of(candidates[raced[position]], fresh[:n])
            return all(self._affordable(wanted))

        if fresh:
            winner = race(len(raced) - 1, stand, rows=len(fresh), affordable=affordable)
            chosen = raced[winner]
            second = self._second(candidates, asked, chosen)
        else:
            chosen = _best_screened(first, raced)
            second = None
        # Candidates whose predictions may be given out without their label prior.
        kept = {0, chosen} if second is None else {0, chosen, second}
        for number in sorted(kept):
            queries = queries_of(candidates[number], asked[number])
            self.adapter.learn_prior(queries, self._ask(queries))
        validated = [
            self._raced(candidate, score, rows, standing)
            for candidate, score, rows, standing in zip(
                candidates, searched.val_aggregate_scores, asked, first, strict=True
            )
        ]
        return Choice(validated=tuple(validated), chosen=chosen, second=second)

    def _raced(
        self, candidate: CandidateTexts, score: float, rows: Sequence[Example], screened: CandidateStanding
    ) -> ValidatedCandidate:
        """Return the figures of a candidate on the rows that a race asked it about."""
        queries = queries_of(candidate, rows)
        predictions = list(map(self.adapter.corrected, queries, self._ask(queries)))
        return replace(
            self._validated(candidate, score, rows, predictions),
            rows=len(rows),
            log_loss=self._standing(candidate, rows).loss,
            screened_loss=screened.loss,
        )

    def _second(
        self, candidates: Sequence[CandidateTexts], asked: Sequence[Sequence[Example]], chosen: int
    ) -> int | None:
        """Return the position of the second: asked about most rows, then lowest loss; None without one."""

        def merit(position: int) -> tuple[int, float]:
            rows = asked[position]
            return -len(rows), self._standing(candidates[position], rows).loss

        others = (position for position in range(len(asked)) if position != chosen)
        return min(others, key=merit, default=None)

    def _validated(
        self,
        candidate: CandidateTexts,
        score: float,
        rows: Sequence[Example],
        predictions: Sequence[Prediction],
    ) -> ValidatedCandidate:
        """Return the figures of a candidate on its validation rows."""
        scores = row_scores(answered_rows(rows, predictions), labels=self.task.labels)
        return ValidatedCandidate(**vars(scores), candidate=dict(candidate), score=score)

    def _standing(self, candidate: CandidateTexts, rows: Sequence[Example]) -> CandidateStanding:
        labels = self.task.labels
        predictions = self._ask(queries_of(candidate, rows))
        return standing(
            np.array([_logprobs(prediction, labels) for prediction in predictions]),
            [labels.labels.index(row.answer) for row in rows],
            answered=[prediction.outcome is not Outcome.ERROR for prediction in predictions],
            labels=labels,
        )

    def _ask(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return the predictions, asking once per query; queries beyond the budget become errors."""
        known = self._predictions_by_query
        missing = [query for query in dict.fromkeys(queries) if query not in known]
        wanted = list(compress(missing, self._affordable(missing)))
        known.update(dict.fromkeys(missing, _UNASKED))
        known.update(zip(wanted, self.adapter.ask(wanted), strict=True))
        return [known[query] for query in queries]

    def _affordable(self, queries: Sequence[Query]) -> list[bool]:
        return self.adapter.affordable(queries, self.max_metric_calls - self.adapter.metric_calls)


class RepeatWatch:
    """Callback for GEPA that ends a search whose proposer writes nothing new.

    Repeated proposals ask no new row, so the budget of rows alone would go on paying for them.

    Parameters
    ----------
    candidates : sequence of mapping
        Candidates that are there before the first proposal.
    writer : str
        Who writes the proposals, for the sentence.
    most : int or None
        Repeated proposals in a row that end the search; None never ends it.
    """

    def __init__(self, candidates: Sequence[CandidateTexts], *, writer: str, most: int | None) -> None:
        self._known = {(name, text.strip()) for candidate in candidates for name, text in candidate.items()}
        self._writer = writer
        self._most = most
        self._repeats = 0

    def on_proposal_end(self, event: ProposalEndEvent) -> None:
        """Count a proposal of which every text was there before."""
        texts = {(name, text.strip()) for name, text in event["new_instructions"].items()}
        self._repeats = self._repeats + 1 if texts <= self._known else 0
        self._known |= texts

    def should_stop(self, state: object) -> bool:  # noqa: ARG002  (GEPA's stopper signature)
        """Return True if too many proposals in a row were repeated ones."""
        return self._most is not None and self._repeats >= self._most

    @property
    def sentence(self) -> str:
        """Sentence on the early end of the search; empty where it did not end early."""
        if not self.should_stop(None):
            return ""
        return (
            f"The search ended early: {self._writer} proposed nothing new {self._repeats} times in a row, only texts "
            "that had been tried before."
        )


class _FileLogger:
    """Logger for GEPA, which writes to a file in the run directory or drops messages."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def log(self, message: object) -> None:
        """Append a message."""
        if self._directory is not None:
            with (self._directory / "search.log").open("a", encoding="utf-8") as file:
                file.write(f"{message}\n")


def _once(decide: _Stopper) -> _Stopper:
    """Return a stopper for GEPA that decides at its first call and repeats that decision."""
    decided: list[bool] = []

    def stop(state: GEPAState[object, int]) -> bool:
        if not decided:
            decided.append(decide(state))
        return decided[0]

    return stop


def _texts_in_turn() -> ReflectionComponentSelector:
    """Return GEPA's selector of the next component to rewrite: in turn, but never demonstrations.

    Never the demonstrations: they are settings, not a text that feedback could improve.
    """
    from gepa.strategies.component_selector import (  # noqa: PLC0415  (heavy)
        RoundRobinReflectionComponentSelector,
    )

    in_turn = RoundRobinReflectionComponentSelector()

    def select(*asked: Any, **named: Any) -> list[str]:  # noqa: ANN401  (GEPA's arguments, handed on)
        names: list[str] = [DEMONSTRATED]
        while names == [DEMONSTRATED]:
            names = in_turn(*asked, **named)
        return names

    return select


def _promising(standings: Sequence[CandidateStanding]) -> list[int]:
    """Return the positions of candidates beside the seed that may be raced, the lowest loss first."""
    others = sorted(range(1, len(standings)), key=lambda position: (standings[position].loss, position))
    return [position for position in others if gain(standings[0], standings[position]) >= _HOPELESS]


def _best_screened(standings: Sequence[CandidateStanding], raced: Sequence[int]) -> int:
    """Return the position of the best candidate by screening rows alone; 0, the seed, if none beats it.

    The best of k on the rows that chose it is the luckiest, too: by so many standard errors, in the mean, at most.
    """
    position = raced[min(1, len(raced) - 1)]
    best = standings[position]
    seed = standings[0]
    is_better = best.accuracy > seed.accuracy and best.macro_f1 > seed.macro_f1
    errors = math.sqrt(2.0 * math.log(len(standings)))
    if is_better and beats(best, seed, errors=errors):
        return position
    return 0


def _logprobs(prediction: Prediction, labels: LabelSet) -> FloatArray:
    """Return log-probabilities of all labels, made from the predicted label without a distribution."""
    if prediction.distribution is not None:
        return np.asarray(prediction.distribution.logprobs, dtype=np.float64)
    weights = np.ones(len(labels))
    if prediction.label is not None:
        # How sure it is, the race finds out itself.
        weights[labels.labels.index(prediction.label)] = 9.0 * len(labels)
    logprobs: FloatArray = np.log(weights / weights.sum())
    return logprobs
