"""Label descriptions as a component of GEPA's candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from calibrant.adapters._rows import Candidate, prompt_component
from calibrant.core._decision import DecisionClient
from calibrant.core._labels import (
    LABEL_DESCRIPTIONS,
    LabelSet,
    label_list,
    read_descriptions,
    split_label_list,
)
from calibrant.core._predictor import Predictor
from calibrant.inference._classifier import Classifier
from calibrant.inference._demonstrations import DemonstrationFormat, answer_form

REFLECTION_TEMPLATE: Final = """A classifier reads this list of what each label means:
```
<curr_param>
```

These are texts that it was given, its answers, and feedback on them:
```
<side_info>
```

Write a better list. Say in a few words what texts of each label have in common, and what sets labels apart that were \
confused. Describe kinds of texts and copy none. Write one line for each label, as `label: description`, and nothing \
else. Give the list within ``` blocks."""
"""GEPA's reflection prompt for the component `label_descriptions`."""


def decides(predictor: object) -> bool:
    """Return True for the classifier of a decision model, which takes descriptions beside its options."""
    return isinstance(predictor, Classifier) and isinstance(predictor.client, DecisionClient)


def own_descriptions(predictor: object) -> Mapping[str, str]:
    """Return the descriptions that a predictor uses where a prompt lists none."""
    return predictor.method.setup.label_descriptions if isinstance(predictor, Classifier) else {}


def listed_prompt(prompt: str, descriptions: Mapping[str, str], labels: LabelSet, *, ending: str = "") -> str:
    """Return a prompt with a list of labels and their descriptions before its demonstrations, in place of its own."""
    rest, _ = DemonstrationFormat.split(prompt)
    demonstrations = prompt[len(rest) :]
    instruction, _ = split_label_list(rest, labels)
    return instruction + label_list(descriptions, labels) + ending + demonstrations


def described_candidate(candidate: Candidate, predictor: Predictor) -> Candidate:
    """Return a candidate whose label descriptions, if it has some, stand in its prompt.

    A prompt is all that a classifier, its head and its files are known by; a decision model's are taken out of it for
    their place beside the options.

    Raises
    ------
    ConfigurationError
        The descriptions are not one line for each label.
    """
    if LABEL_DESCRIPTIONS not in candidate:
        return candidate
    labels = predictor.labels
    found = read_descriptions(candidate[LABEL_DESCRIPTIONS], labels)
    described = {name: text for name, text in candidate.items() if name != LABEL_DESCRIPTIONS}
    if found or own_descriptions(predictor):
        name = prompt_component(candidate)
        ending = "" if decides(predictor) else answer_form(predictor.field)
        described[name] = listed_prompt(candidate[name], found, labels, ending=ending)
    return described


def format_record(labels: LabelSet, refused: str) -> dict[str, str]:
    """Return the reflection record that says how descriptions are written, and why the last ones were refused."""
    rule = f"Write one line for each of these labels, as `label: description`: {', '.join(labels)}."
    return {
        "Inputs": "all rows together",
        "Generated Outputs": "",
        "Feedback": f"{rule} The last proposal was refused. {refused}" if refused else rule,
    }
