"""Table of the share, cost and accuracy of each model of a cascade."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibrant.cli._tables import aligned, dollars, with_interval

if TYPE_CHECKING:
    from calibrant.metrics._cascade import CascadeMetrics

_HEAD = ("cascade", "asked", "accepted", "accuracy of accepted", "calls", "cost")


def cascade_lines(found: CascadeMetrics) -> list[str]:
    """Return one line per model, a total line, and lines on rows without a confident model."""
    rows = found.rows
    table = [
        _HEAD,
        *(
            (
                model.model,
                _share(model.asked, rows),
                _share(model.accepted, rows),
                with_interval(model.accuracy),
                f"{model.calls:,}",
                dollars(model.cost),
            )
            for model in found.models
        ),
        (
            "all models",
            _share(rows, rows),
            _share(found.accepted, rows),
            with_interval(found.accuracy),
            f"{found.calls:,}",
            dollars(found.cost),
        ),
    ]
    lines = [*aligned(table), f"escalated: {_share(found.escalated, rows)} of the rows"]
    troubles = [
        f"{model.model}: {count:,} {what}"
        for model in found.models
        for count, what in ((model.no_evidence, "without evidence"), (model.failed, "failed"))
        if count
    ]
    if found.unaccepted_accuracy is not None:
        lines.append(
            f"not accepted, yet answered: {_share(found.unaccepted_answered, rows)} of the rows, accuracy "
            f"{with_interval(found.unaccepted_accuracy)}"
        )
    if troubles:
        lines.append(f'not judged: {"; ".join(troubles)} (why: "reason" in the steps of predictions.jsonl)')
    return lines


def _share(part: int, rows: int) -> str:
    return f"{part:,} ({100 * part / rows:.1f} %)"
