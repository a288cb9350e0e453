"""The model card of a bundle: what it does, how well, and what it does not know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from calibrant.assembly._bundle import Figure
from calibrant.assembly._bundle_figures import collapse_warning, label_mass_warning
from calibrant.assembly._task_record import RunSettings
from calibrant.core._composite import FieldLabels, MultiLabels
from calibrant.core._labels import LabelSet

_LABELS: Final = 20  # named on the card
_EXEMPLAR: Final = "exemplar"
_USE: Final = """```python
import calibrant
from calibrant.assembly import read_bundle

classifier = calibrant.load("path/to/this/folder")
prediction = classifier.classify("a text")
print(prediction.label, prediction.confidence)
print(read_bundle("path/to/this/folder").decide(prediction).accepted)  # False: to review
```"""
_LABEL_SHARE: Final = "the label's share of the probability that the model gives to all labels together"
_CONFIDENCE: Final = {
    "masked": "the probability of the label, as the model reports it after all that is no label was ruled out",
    "raw": _LABEL_SHARE,
    "exact": f"{_LABEL_SHARE}, with every label scored",
    "sampled": "how many of several answers agree, smoothed; not a probability of the model",
    "mixed": "of another kind from model to model; every prediction says of which",
}
_ESCAPED: Final = r"\\\1"
_MARKUP: Final = re.compile(r"([\\`<\[])")


def card(  # noqa: PLR0913  (keyword-only options)
    settings: RunSettings,
    *,
    name: str,
    labels: LabelSet,
    prompt: str,
    proposer: str | None,
    figures: Sequence[Figure],
    thresholds: Mapping[str, Any],
    fingerprint: Mapping[str, Any],
    measured_on: str,
    answered_by: Mapping[str, int],
    corrected: bool,
    head: Mapping[str, Any] | None,
    calibrator: bool,
    verdict: Sequence[str] = (),
    demonstrations: Mapping[str, Any] | None = None,
    texts_left_out: bool = False,
) -> str:
    """Return the card as Markdown.

    Parameters
    ----------
    settings : RunSettings
        Models of the run, and their settings.
    name : str
        The task's name.
    labels : LabelSet
        The labels.
    prompt : str
        The prompt.
    proposer : str or None
        Proposer that wrote the prompt; None without a search.
    figures : sequence of Figure
        Figures measured in the run.
    thresholds : mapping
        As ``thresholds.json`` has them.
    fingerprint : mapping
        The fingerprint's record.
    measured_on : str
        Description of the rows that the figures were measured on.
    answered_by : mapping of str to int
        Rows by the model that the server reports; empty if the run did not count them.
    corrected, calibrator : bool
        True if a label prior is divided out; True if the bundle has a calibrator.
    head : mapping or None
        Contents of ``head.json``.
    verdict : sequence of str, optional
        Sentences on the result of the prompt search, and on the model's gain over TF-IDF.
    demonstrations : mapping, optional
        Demonstrations of the prompts, as described by `calibrant.calibration.demonstrated`.
    texts_left_out : bool, default False
        True if the run showed demonstrations that the bundle leaves out.
    """
    treatment = [
        *_treatment(
            prompt,
            str(fingerprint["space"]),
            answered_by,
            corrected=corrected,
            head=head,
            calibrator=calibrator,
        ),
        *_shown(demonstrations),
    ]
    remarks = [
        *_texts(demonstrations, proposer, left_out=texts_left_out),
        *_remarks(settings, verdict, figures),
    ]
    parts = [
        f"# {_MARKUP.sub(_ESCAPED, ' '.join(name.split()))}",
        _answers(labels),
        "\n".join([f"- Asked: {_asked_models(settings)}", *treatment]),
        "## Figures",
        *_figures(figures, measured_on),
        "## Thresholds",
        "\n\n".join(_thresholds(thresholds)),
        "## What to know",
        "\n".join(f"- {line}" for line in remarks),
        "## Use",
        _USE,
        _fingerprint(fingerprint),
    ]
    return "\n\n".join(parts) + "\n"


def _code(text: str) -> str:
    """Return text of somebody else as code, which nothing in it can end."""
    shown = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence} {shown} {fence}" if "`" in shown else f"`{shown}`"


def _answers(labels: LabelSet) -> str:
    """Return a description of the labels that the classifier answers with."""
    if isinstance(labels, FieldLabels):
        fields = [f"- {_code(field.name)}: one of {_label_names(field.labels)}" for field in labels.fields]
        return "\n".join(["A text classifier that answers with one label for each field:", "", *fields])
    if isinstance(labels, MultiLabels):
        return f"A text classifier that answers with any number, none included, of {_label_names(labels)}."
    return f"A text classifier that answers with one of {_label_names(labels)}."


def _label_names(labels: LabelSet) -> str:
    more = len(labels) - _LABELS
    named = ", ".join(map(_code, labels.labels[:_LABELS]))
    return f"{len(labels)} labels: {named}" + (f" and {more:,} more" if more > 0 else "")


def _fingerprint(record: Mapping[str, Any]) -> str:
    return (
        f"Fingerprint: model {_code(record['model'])}, space `{record['space']}`, prompt SHA-256 "
        f"`{record['prompt_sha256']}`."
    )


def _asked_models(settings: RunSettings) -> str:
    if settings.plan is not None:
        names = ", ".join(_code(task["model"]["name"]) for task in settings.tasks)
        return f"{names}, as a plan of a cascade says (`plan.json`)"
    task = settings.tasks[0]
    parts = []
    if task["cascade"] is not None:
        parts.append("in turn " + ", ".join(_code(model["name"]) for model in task["cascade"]["models"]))
    if task["routing"] is not None:
        parts.append("one of " + ", ".join(_code(own["name"]) for own in task["routing"]["providers"]))
    return ", with `routed` as ".join(parts) or _code(task["model"]["name"])


def _treatment(
    prompt: str,
    space: str,
    answered_by: Mapping[str, int],
    *,
    corrected: bool,
    head: Mapping[str, Any] | None,
    calibrator: bool,
) -> Iterator[str]:
    if answered_by:
        counted = ", ".join(f"{_code(model)} ({rows:,} rows)" for model, rows in answered_by.items())
        yield f"- Answered by: {counted}, as the server said"
    yield f"- Prompt: {len(prompt):,} characters (`prompt.txt`)"
    if space in _CONFIDENCE:
        yield f"- Confidence: {_CONFIDENCE[space]}. How often it is right, the figures say"
    if corrected:
        yield "- The label prior is divided out of every distribution (`label_prior.json`)"
    if head is not None:
        yield (
            f"- A head (`head.json`, {head['rung']}) learned from {head['n_rows']:,} labelled rows makes the final "
            "distribution" + (". It holds words of their texts" if "text" in head["rung"] else "")
        )
        if "embedding" in head:
            yield (
                f"- It reads texts with the embedding model {_code(head['embedding']['name'])}, which is not in this "
                "folder: it is opened by that name (extra `embeddings`)"
            )
    if calibrator:
        yield "- Confidence can be calibrated (`calibrator.json`); predictions hold it as given"


def _shown(demonstrations: Mapping[str, Any] | None) -> Iterator[str]:
    if demonstrations is not None:
        balanced = ", of each label in turn" if demonstrations["balance"] == "balanced" else ""
        yield (
            f"- Demonstrations: every text is shown the {demonstrations['k']} nearest of "
            f"{demonstrations['rows']:,} labelled texts ({demonstrations['retriever']}{balanced})"
        )


def _texts(
    demonstrations: Mapping[str, Any] | None, proposer: str | None, *, left_out: bool
) -> Iterator[str]:
    """Yield sentences about the training texts that the folder holds."""
    if left_out:
        yield (
            "**The run showed every text the labelled texts nearest to it, which were left out of this folder: its "
            "prompts show none. Nothing that was learned or measured with them is in it: measure again.**"
        )
    if demonstrations is not None:
        yield (
            f"`demonstrations.jsonl` holds {demonstrations['rows']:,} training texts with their labels: whoever has "
            "this folder can read them."
        )
    if proposer == _EXEMPLAR:
        yield "The prompt quotes training rows: whoever has this folder can read them."
    elif demonstrations is None:
        yield (
            "The folder holds no rows of data but what the prompts quote; digests of texts in `calibrator.json` tell "
            "whether a known text was fitted."
        )


def _figures(figures: Sequence[Figure], measured_on: str) -> Iterator[str]:
    if not figures:
        yield "Nothing was measured."
        return
    yield f"Measured on {measured_on}."
    rows = ["| figure | value | rows |", "| --- | --- | --- |"]
    rows += [f"| {figure.name} | {figure_text(figure)} | {figure.rows:,} |" for figure in figures]
    yield "\n".join(rows)
    yield "They hold for rows like those they were measured on; on others, measure again."


def figure_text(figure: Figure) -> str:
    """Return a figure's value, with its interval where it has one."""
    value = f"{figure.estimate:.4f}"
    if figure.lower is None or figure.upper is None or figure.level is None:
        return value
    return f"{value} ({100 * figure.level:.4g} % interval {figure.lower:.4f} to {figure.upper:.4f})"


def _thresholds(thresholds: Mapping[str, Any]) -> Iterator[str]:
    asked, certified, suggested = (thresholds[name] for name in ("certification", "certified", "suggested"))
    if asked is not None:
        target = f"an accuracy of {asked['target_accuracy']:g} with probability {1 - asked['delta']:g}"
        if certified is None:
            yield f"Nothing is certified: {asked['n']:,} rows show no threshold with {target}, so nothing is accepted."
        else:
            yield (
                f"Certified: answers with a confidence from {certified['threshold']:.6g} have at least {target}; "
                f"{certified['coverage']:.1%} of {asked['n']:,} rows are accepted."
            )
    if suggested is not None:
        yield (
            f"Suggested: high {suggested['high']:.4g}, low {suggested['low']:.4g} (from {suggested['n']:,} rows; no "
            "guarantee)."
        )
        if asked is None:
            yield (
                "Accepted are answers from the high one on. It was found on some of these rows, so expect fewer right "
                "ones elsewhere; `calibrant calibrate --target-accuracy` certifies one."
            )
        yield from (f"Note: {warning}" for warning in suggested["warnings"])
    elif asked is None:
        why = thresholds["no_suggestion"] or "the run was not calibrated (`calibrant calibrate`)."
        yield f"None: {why}"


def _remarks(settings: RunSettings, verdict: Sequence[str], figures: Sequence[Figure]) -> Iterator[str]:
    for warning in filter(None, (collapse_warning(figures), label_mass_warning(figures))):
        yield f"**{warning}**"
    if verdict:
        yield " ".join(verdict)
    left_out = [
        f"{', '.join(f'`{option}`' for option in options)} of `{model}`"
        for task in settings.tasks
        for model, options in task["left_out"].items()
    ]
    if left_out:
        yield f"Left out, as they may be credentials: {'; '.join(left_out)}. Hand them in at loading."
    if any(task["state_left_out"] for task in settings.tasks):
        yield "What the providers' strategy has learnt is no part of the folder: `router_state` says where it is."
    yield "Hashes tell whether the folder was altered by accident; they do not tell who wrote it."
