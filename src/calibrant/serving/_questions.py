"""Questions of typed decisions: which of them a tuned classifier answers, and which the model alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeGuard

from calibrant.calibration._calibrators import IdentityCalibrator
from calibrant.core._completion import DecisionClient
from calibrant.core._errors import ConfigurationError
from calibrant.core._files import json_text
from calibrant.core._labels import LabelSet, normalise_label, split_label_list
from calibrant.core._prediction import FloatArray, Outcome, Prediction
from calibrant.core._predictor import Predictor
from calibrant.core._reported import listed
from calibrant.core._structures import OrdinalLabels
from calibrant.heads._tuned import Decision, Tuned
from calibrant.inference._classifier import Classifier
from calibrant.inference._deciding import DEFAULT_INSTRUCTIONS, YES_NO
from calibrant.inference._models import STUDENT
from calibrant.serving._wires import BadQuestionError, Question, QuestionAnswer

_KEPT: Final = 64  # other questions whose classifiers are kept
_MOST_LISTED: Final = 6_000  # characters of options and descriptions: about 1,500 tokens
_AHEAD: Final = 1e-9  # by which a label leads where calibration alone would make another one as probable


class Questions:
    """Questions that a service can answer.

    A question whose options are the task's labels, or those of one of its fields, is the task's. A yes/no question
    names no options, and several fields may have the same labels: the instructions of such a question are the name
    of the field (of a set of labels, the label), or of a task of one label its name, its field or its prompt.

    Parameters
    ----------
    tuned : Tuned or None
        The tuned classifier; None leaves every question to the model alone.
    predictor : Predictor
        The same opened.
    only_task : bool, default False
        True to refuse questions that are not the task's.
    """

    def __init__(self, tuned: Tuned | None, predictor: Predictor, *, only_task: bool = False) -> None:
        self._tuned = tuned
        self._predictor = predictor
        self._only_task = only_task
        self._classifiers = lru_cache(maxsize=_KEPT)(self._new_classifier)

    def part_of(self, question: Question) -> str | None:
        """Return the part of the task's answer that a question is about; None for a question of another kind."""
        if self._tuned is None or self._tuned.labels.is_open:
            return None
        labels = self._tuned.labels
        fitting = [part for part in labels.parts if _places(question, labels.labels_of(part)) is not None]
        if question.kind != "yes_no" and len(fitting) == 1:
            return fitting[0]
        asked = normalise_label(question.instructions)
        return next((part for part in fitting if asked in self._titles(part)), None)

    def _titles(self, part: str) -> set[str]:
        """Return the instructions that stand for a part of the task's answer."""
        assert self._tuned is not None  # noqa: S101 (it has parts)
        tuned = self._tuned
        titles = [part]
        if not tuned.labels.holds_several:
            instruction = split_label_list(tuned.prompt, tuned.labels)[0]
            titles = [tuned.name, tuned.field, tuned.prompt, instruction]
        return set(map(normalise_label, titles))

    def predictor_of(self, question: Question) -> Predictor:
        """Return the predictor that answers a question.

        Raises
        ------
        BadQuestionError
            The question is not the task's, and nothing else is answered, or the model takes no such options.
        """
        if self.part_of(question) is not None:
            return self._predictor
        if self._only_task or not _takes_questions(self._predictor):
            known = "" if self._tuned is None else f" ({listed(self._tuned.labels.labels)})"
            message = f"Expected a question with the task's labels as its options{known}, got others."
            raise BadQuestionError((question.place, message, "other_question"))
        takes_options = isinstance(self._predictor.client, DecisionClient)
        told = question.descriptions if takes_options else ()
        prompt = _instructions(question) if takes_options else _listing_prompt(question)
        try:
            return self._classifiers(question.kind, question.options, tuple(told), prompt)
        except ConfigurationError as error:
            raise BadQuestionError((question.place, str(error), "bad_options")) from None

    def _new_classifier(
        self, kind: str, options: tuple[str, ...], descriptions: tuple[str, ...], prompt: str
    ) -> Classifier:
        assert isinstance(self._predictor, Classifier)  # noqa: S101 (`predictor_of` has looked)
        labels = OrdinalLabels(options) if kind == "score" else LabelSet(options)
        described = {option: words for option, words in zip(options, descriptions, strict=False) if words}
        return self._predictor.about(labels, prompt=prompt, label_descriptions=described)

    def answer(
        self, question: Question, prediction: Prediction, decision: Decision | None
    ) -> QuestionAnswer | None:
        """Return the answer to a question; None where the model declined.

        Parameters
        ----------
        question : Question
            The question.
        prediction : Prediction
            Of its predictor.
        decision : Decision or None
            On the tuned classifier's prediction; None where the model alone has answered.

        Raises
        ------
        BadQuestionError
            The prediction has no distribution.
        """
        if prediction.outcome is Outcome.REFUSAL:
            return None
        labels = LabelSet(question.options)
        found = prediction.distribution
        calibrated = None
        label = prediction.label
        details: dict[str, Any] = {"x_calibrated": False}
        if decision is not None and self._tuned is not None:
            part = self.part_of(question)
            labels = self._tuned.labels
            details = _details(self._tuned, decision, model=prediction.model)
            if labels.holds_several:  # the calibrated confidence is that in all of them
                own = next((own for own in prediction.parts if own.name == part), None)
                label = None if own is None else own.label
                found = None if own is None else own.distribution
                labels = labels.labels_of(part or "")
            else:
                calibrated = decision.calibrated
        places = _places(question, labels)
        if label is None or found is None or places is None:
            why = prediction.reason or "the model reports no probabilities of labels"
            message = (
                f"Expected an answer with probabilities, got none ({why}): ask otherwise, or another model."
            )
            raise BadQuestionError((question.place, message, "no_answer"))
        shares = _led(found.probabilities, labels.labels.index(label), calibrated)[places]
        return QuestionAnswer(
            probabilities=shares,
            best=int(shares.argmax()),
            decision="uncalibrated" if decision is None else decision.name or "undecided",
            details=details,
        )


def _instructions(question: Question) -> str:
    return question.instructions.strip() or DEFAULT_INSTRUCTIONS


def _listing_prompt(question: Question) -> str:
    """Return the instructions of a question with a list of its options and what they mean."""
    instructions = _instructions(question)
    lines = []
    for option, description in zip(question.options, question.descriptions, strict=True):
        shown = option
        if not option.isprintable():
            shown = json_text(option)
        lines.append(f"- {shown}: {description}" if description else f"- {shown}")
    if sum(map(len, lines)) > _MOST_LISTED:
        return instructions  # the model scores every option all the same
    order = ", from the lowest to the highest" if question.kind == "score" else ""
    return "\n".join([f"{instructions}\n\nThe answer is one of these{order}:", *lines])


def _places(question: Question, labels: LabelSet) -> list[int] | None:
    """Return the place of each option among labels; None if they are other labels."""
    spellings = YES_NO if question.kind == "yes_no" else (question.options,)
    for options in spellings:
        found = [labels.canonical(option) for option in options]
        if len(found) == len(labels) and set(found) == set(labels):
            return [labels.labels.index(label) for label in found if label is not None]
    return None


def _led(shares: FloatArray, label: int, calibrated: float | None) -> FloatArray:
    """Return probabilities in which the label's is the calibrated confidence, and the others share the rest as before.

    The label stays ahead, if only by a billionth: calibration says how often it is right, not which one would be.

    Parameters
    ----------
    shares : ndarray of shape (L,)
        Probabilities; the sum is 1 up to rounding.
    label : int
        Index of the label.
    calibrated : float or None
        Calibrated confidence in the label, in [0, 1]; None keeps its probability.
    """
    led: FloatArray = shares / shares.sum()
    own = float(led[label]) if calibrated is None else calibrated
    led[label] = 0.0
    rest = float(led.sum())
    most = float(led.max())
    tied = most / (rest + most) if rest else 0.0  # where the label is as probable as the next one
    own = min(1.0, max(own, tied + _AHEAD)) if rest else 1.0
    led *= (1.0 - own) / (rest or 1.0)
    led[label] = own
    return led


def _takes_questions(predictor: Predictor) -> TypeGuard[Classifier]:
    """Return True for a model that reads other questions; a student knows its task alone, a cascade asks several."""
    return isinstance(predictor, Classifier) and not predictor.client.name.startswith(STUDENT)


def _details(tuned: Tuned, decision: Decision, *, model: str | None) -> dict[str, Any]:
    """Return members of System One's answers that tell of the tuned classifier's prediction."""
    compared = {"confidence": decision.confidence, "calibrated": decision.calibrated}
    calibrator = None if tuned.labels.holds_several else tuned.calibrator  # of all labels together
    is_calibrated = calibrator is not None and calibrator.method != IdentityCalibrator.method
    certificate = None
    certified = tuned.thresholds["certified"]
    # A promise that failed accepts nothing, and one that was measured on another model says nothing of this one.
    if decision.rule == "certified" and certified is not None and not tuned.unmeasured([model]):
        certificate = {
            "accuracy": certified["target_accuracy"],
            "probability": 1.0 - certified["delta"],
        }
    return {
        "x_calibrated": is_calibrated or (tuned.head is not None and not tuned.head.changes_nothing),
        "x_decision": decision.name,
        "x_confidence": decision.final_confidence,
        "x_compared": compared.get(decision.decided_by or ""),
        "x_threshold": decision.threshold,
        "x_certificate": certificate,
    }
