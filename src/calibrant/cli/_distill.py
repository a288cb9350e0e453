"""``calibrant distill``: a student of a model, with its figures on held-out rows."""

from __future__ import annotations

from collections.abc import Iterator

from calibrant.cli._commands import Distill
from calibrant.cli._tables import aligned, print_output, with_interval
from calibrant.tuned._distilled import DELTA, EPSILON, Distilled
from calibrant.tuned._distilled import distill as distilled


def distill(options: Distill) -> None:
    """Learn the student, write its files and print what it may keep."""
    found = distilled(options.run, options.out, embeddings=options.embeddings)
    print_output(found.to_record(), _lines(found), as_json=options.as_json)


def _lines(found: Distilled) -> Iterator[str]:
    left_out = f" (left out: {found.left_out:,} without a text or a label)" if found.left_out else ""
    yield (
        f"{found.source}: a student ({found.head.title}) from {found.taught:,} rows, measured on {found.held_out:,} "
        f"others{left_out}"
    )
    rows = [["", "student", "model"], ["says what the model says", with_interval(found.agreement), ""]]
    if found.labelled:
        accuracies = map(with_interval, (found.accuracy, found.model_accuracy))
        rows.append([f"accuracy, {found.labelled:,} rows with a true label", *accuracies])
    yield from aligned(rows)
    if found.labelled < found.held_out:
        yield f"On {found.held_out - found.labelled:,} rows the model's label stands in for the true one."
    certified = found.certified
    if certified.share_small > 0.0:
        yield (
            f"Certified: the student may answer {certified.share_small:.1%} of the texts, its surest ones; with "
            f"probability {1 - DELTA:g}, at most {EPSILON:g} of the accuracy is lost against always asking the model."
        )
        plan = f"calibrant cascade plan {found.directory} {found.model_rows} --small-cost 0 --large-cost 1"
        yield from ("To have it answer first:", f"  {plan} --out {found.directory}/plan")
    else:
        yield (
            f"Nothing certified: these rows do not show that the student may answer any text at a loss of at most "
            f"{EPSILON:g}. Label more texts with the model, or give it vectors (--embeddings)."
        )
    yield (
        f"Files in {found.directory}: student.json (it holds words of the texts), {found.model_rows.name}, and the "
        "student's answers to the held-out rows"
    )
