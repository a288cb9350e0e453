"""Promises on accepted answers: the best one that labelled rows bear, and the sentences about a certificate."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from numpy.typing import ArrayLike

from calibrant.calibration._certify import CertifiedThreshold, certify_threshold
from calibrant.metrics._validation import check_number

# Probability that the accepted rows of one file are less often right than a true certificate lets expect.
_FILE_DELTA: Final = 0.05

TARGETS: Final = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)


def best_promise(
    confidence: ArrayLike, correct: ArrayLike, *, below: float, delta: float = 0.05
) -> CertifiedThreshold | None:
    """Return the certified threshold of the highest target accuracy that the rows bear; None without any.

    Targets are 0.95, 0.9 and so on down to 0.5, fixed before the rows are seen. Each is certified with a tenth of
    `delta` (Bonferroni), so that, with probability ``1 - delta``, none of the ten certificates is wrong, whichever of
    them is taken.

    Parameters
    ----------
    confidence, correct, delta
        As for `certify_threshold`. The `delta` of the result is a tenth of this one.
    below : float
        Only targets below this accuracy, in (0, 1], are tried.

    Raises
    ------
    ConfigurationError
        As for `certify_threshold`.

    Examples
    --------
    >>> from calibrant.calibration import best_promise
    >>> found = best_promise([0.9] * 40 + [0.6] * 60, [1] * 40 + [1, 0] * 30, below=0.95)
    >>> found.target_accuracy, found.delta, found.coverage
    (0.85, 0.005, 0.4)
    """
    share = check_number("delta", delta, "(0, 1)") / len(TARGETS)
    highest = check_number("below", below, "(0, 1]")
    for target in TARGETS:
        if target < highest:
            found = certify_threshold(confidence, correct, target_accuracy=target, delta=share)
            if found.threshold is not None:
                return found
    return None


def with_best_promise(
    wanted: CertifiedThreshold, confidence: ArrayLike, correct: ArrayLike
) -> CertifiedThreshold:
    """Return a certificate; one without a threshold together with the best promise that the rows bear."""
    if wanted.threshold is not None:
        return wanted
    lower = best_promise(confidence, correct, below=wanted.target_accuracy, delta=wanted.delta)
    return replace(wanted, best_promise=lower)


def certificate_from_record(record: Mapping[str, Any]) -> CertifiedThreshold:
    """Return a certificate from the JSON values in ``calibration.json``."""
    lower = record.get("best_promise")
    return CertifiedThreshold(
        **{**record, "best_promise": None if lower is None else CertifiedThreshold(**lower)}
    )


def certificate_lines(
    found: CertifiedThreshold, *, run: str | Path = "RUN", out: str | Path = "RUN"
) -> Iterator[str]:
    """Yield the sentence on a certificate; without one, the reason and the best promise that the rows bear.

    Parameters
    ----------
    found : CertifiedThreshold
        The certificate, or its absence.
    run, out : str or Path
        Labelled predictions and directory for the command that certifies the best promise.
    """
    if found.threshold is not None:
        yield f"Certified: {promise_sentence(found)}"
        return
    yield _reason(found)
    lower = found.best_promise
    if lower is None:
        if found.target_accuracy > TARGETS[-1]:
            yield f"Nor do they bear a lower promise: targets down to {TARGETS[-1]:g} were tried."
        return
    certain = f"with probability {1 - found.delta:g} (that it was picked from {len(TARGETS)} targets is allowed for)"
    yield (
        f"These rows do bear a promise of {lower.target_accuracy:g} for {lower.coverage:.0%} of the rows, {certain}. "
        "To accept by it:"
    )
    words = ["calibrant", "calibrate", str(run), "--target-accuracy", f"{lower.target_accuracy:g}"]
    yield f"  {shlex.join([*words, '--delta', f'{lower.delta:.12g}', '--out', str(out)])}"


def promise_sentence(found: CertifiedThreshold) -> str:
    """Return the sentence on the answers that a certified threshold accepts."""
    least = f"answers with a confidence of {found.threshold:.6g} or more have"
    which = least if found.threshold else "all answers have"
    return (
        f"{which} at least accuracy {found.target_accuracy:g} with probability {1 - found.delta:g}; of these "
        f"{found.n:,} rows it accepts {found.coverage:.1%}, {found.accuracy or 0.0:.1%} of them right."
    )


@dataclass(frozen=True, kw_only=True)
class FilePromise:
    """Promise on the accepted rows of one file, from a certificate about all rows like the labelled ones.

    Attributes
    ----------
    accepted : int
        Accepted rows of the file.
    least_right : int
        Right ones among them, at least.
    probability : float
        Of the promise: 1 less the certificate's `delta` and 0.05.
    """

    accepted: int
    least_right: int
    probability: float

    @classmethod
    def of(cls, certified: Mapping[str, Any], accepted: int) -> FilePromise:
        """Return the promise on the accepted rows of a file that is drawn like those of the certificate.

        If each is right with probability `target_accuracy` at least, fewer than the lower 0.05 quantile of the binomial
        distribution are right with probability 0.05 at most.
        """
        from scipy.stats import binom  # noqa: PLC0415  (heavy)

        least = int(binom.ppf(_FILE_DELTA, accepted, certified["target_accuracy"]))
        return cls(accepted=accepted, least_right=least, probability=1.0 - certified["delta"] - _FILE_DELTA)

    def sentence(self) -> str:
        """Return the promise as a sentence."""
        return (
            f"That is about all rows like the labelled ones. Of the {self.accepted:,} accepted in this file, at least "
            f"{self.least_right:,} ({self.least_right / self.accepted:.1%}) are right with probability "
            f"{self.probability:.4g}."
        )


def _reason(found: CertifiedThreshold) -> str:
    """Return the reason for the absence of a certificate, and the rows that it takes."""
    if found.additional_rows is None:
        return (
            f"Nothing certified: No threshold reaches {found.target_accuracy:g} accuracy on these {found.n:,} rows; no "
            "group of confident answers large enough to tell was that accurate, so that more rows like these would "
            "not help."
        )
    return (
        f"Nothing certified: These {found.n:,} rows are too few to promise {found.target_accuracy:g} accuracy with "
        f"probability {1 - found.delta:g}; about {found.additional_rows:,} more labelled row(s) like these would do."
    )
