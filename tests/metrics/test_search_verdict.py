"""Tests of the verdict of a search in sentences."""

from __future__ import annotations

from typing import Any

import pytest

from search_records import search_record, verdict_of

NOTHING = dict.fromkeys(("credit", "rows", "log_loss", "screened_loss", "origin"))
SEED = {**NOTHING, "score": 0.1, "accuracy": 0.2, "macro_f1": 0.14}
BETTER = {**NOTHING, "score": 0.3, "accuracy": 0.4, "macro_f1": 0.35}
SURER = {**NOTHING, "score": 0.5, "accuracy": 0.2, "macro_f1": 0.07}


def record(lower: float, upper: float, **changes: Any) -> dict[str, Any]:
    """Return the fields of a result that the verdict reads, with this interval on the test rows."""
    interval = {"lower": lower, "upper": upper}
    comparison = {"difference": 0.125, "n": 40, "interval": interval}
    found = {"proposals": 3, "validated": [SEED, SURER, BETTER], "chosen": 2, "comparison": comparison}
    return search_record(**{**found, **changes})


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.02, 0.3), "The best prompt is better than the seed prompt alone on the test rows"),
        ((-0.1, 0.3), "The test rows show no difference between the best prompt and the seed prompt alone"),
        (
            (-0.3, -0.02),
            "No improvement: on the test rows the best prompt is worse than the seed prompt alone",
        ),
    ],
)
def test_choice_and_test_are_two_sentences(interval: tuple[float, float], words: str) -> None:
    """The sentence on the choice is the same for all results on the test rows."""
    chosen = (
        "The best prompt was chosen on the validation rows: score 0.100 -> 0.300, accuracy 0.200 -> "
        "0.400, macro F1 0.140 -> 0.350."
    )
    assert verdict_of(record(*interval)) == f"{words}{figures(interval)} {chosen}"


def test_task_prompts_are_compared() -> None:
    """The task's prompts are compared on the same rows, chosen or not."""
    seed = {**SEED, "log_loss": 0.7, "screened_loss": 0.65, "accuracy": 0.5, "macro_f1": 0.4, "rows": 36}
    other = {**BETTER, "log_loss": 0.6, "screened_loss": 0.6, "accuracy": 0.75, "macro_f1": 0.7, "rows": 16}
    given = [seed, {**other, "origin": "other prompt 1"}, other]
    order = "other prompt 1, seed prompt"
    told = f"The task's own prompts, from the best to the worst on the same validation rows: {order}."
    assert verdict_of(record(0.1, 0.2, validated=given, chosen=1)).endswith(
        "40 rows. The best prompt (other prompt 1) was chosen on 16 validation rows: accuracy 0.500 "
        f"-> 0.750, macro F1 0.400 -> 0.700. {told}"
    )
    assert verdict_of(record(0.1, 0.2, validated=given, chosen=0)).endswith(told)
    assert verdict_of(record(0.1, 0.2, validated=given, chosen=2)).endswith(told)
    scored = [SEED, {**BETTER, "origin": "other prompt 1"}]
    assert verdict_of(record(0.1, 0.2, validated=scored, chosen=1)).endswith(told)


def test_a_kept_seed_prompt_is_explained() -> None:
    """A kept seed prompt is explained if another prompt had a higher score without a higher macro F1."""
    kept = verdict_of(record(0.0, 0.0, validated=[SEED, SURER], chosen=0, improved=False))
    assert kept == (
        "No prompt was better on the validation rows in score, accuracy and macro F1 at once: the seed prompt is kept. "
        "The best of 1 other by score: score 0.100 -> 0.500, accuracy 0.200 -> 0.200, macro F1 0.140 -> 0.070."
    )


def test_searches_without_validation_keep_the_seed() -> None:
    """The seed prompt is kept if no proposal passed its minibatch."""
    kept = verdict_of(record(0.0, 0.0, validated=[SEED], chosen=0, improved=False))
    assert kept.endswith("the seed prompt is kept.")
    assert kept.count(".") == 1


def test_a_search_that_tried_no_prompt_says_so() -> None:
    """No prompt was worse where none was proposed."""
    kept = verdict_of(record(0.0, 0.0, validated=[SEED], chosen=0, improved=False, proposals=0))
    assert "No other prompt was tried, as none could be made of these rows: the seed prompt is kept." in kept


def test_credit_replaces_accuracy() -> None:
    """Credit replaces accuracy where an answer can be partly right."""
    validated = [{**SEED, "credit": 0.5}, {**BETTER, "credit": 0.75}]
    verdict = verdict_of(record(0.0, 0.1, validated=validated, chosen=1))
    assert verdict.endswith(
        "chosen on the validation rows: score 0.100 -> 0.300, credit 0.500 -> 0.750, macro F1 0.140 -> 0.350."
    )


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.02, 0.3), "The {} prompt with its head is better than the seed prompt alone on the test rows"),
        (
            (-0.1, 0.3),
            "The test rows show no difference between the {} prompt with its head and the seed prompt alone",
        ),
        (
            (-0.3, -0.02),
            "No improvement: on the test rows the {} prompt with its head is worse than the seed prompt alone",
        ),
    ],
)
def test_heads_are_judged_with_their_prompt(interval: tuple[float, float], words: str) -> None:
    """What the user gets, a prompt with its head, is compared with the seed prompt, whichever prompt was chosen."""
    losses = {"raced_log_loss": 0.7, "other_log_loss": 0.4}
    heads = {"raced": 0, "rows": 60, **losses, "raced_accuracy": 0.7, "other_accuracy": 0.8}
    ends = dict(zip(("lower", "upper"), interval, strict=True))
    against = {"interval": ends, "difference": 0.125, "n": 40}
    score = {"rows": 40, "outcomes": {}, "accuracy": None}
    final = {"against_seed": against, "score": score, "baselines": [], "verdict": ""}
    chosen = (
        "The best prompt was chosen for its head: on 60 validation rows accuracy 0.800, and 0.700 with the other of "
        "the last two."
    )
    verdict = verdict_of(record(-0.5, -0.4, by_head=heads, final=final))
    assert verdict == f"{words.replace('{}', 'best')}{figures(interval)} {chosen}"
    kept = verdict_of(record(-0.5, -0.4, final=final, chosen=0, improved=False))
    assert kept.startswith(f"{words.replace('{}', 'seed')}{figures(interval)} ")


def figures(interval: tuple[float, float]) -> str:
    """Return the end of a sentence about a difference in accuracy."""
    return f": +0.125 accuracy ({interval[0]:+.3f} to {interval[1]:+.3f}, 95 %), 40 rows."
