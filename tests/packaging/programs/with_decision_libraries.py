"""Ask a service of typed decisions with DSPy and litellm; its address is the argument."""

import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy
import litellm
from dspy.experimental import Choice, Noul, TypeSafe

URL = sys.argv[1]
TEXT = "The parcel came two weeks late."
LABELS = ["praise", "complaint"]
KIND = Choice[("praise", "Thanks"), ("complaint", None)]


class Letter(dspy.Signature):
    """Sort the letter."""

    text: str = dspy.InputField()
    kind: KIND = dspy.OutputField(desc="Which kind?")
    late: Noul = dspy.OutputField(desc="Is something late?")


sort = dspy.Predict(Letter)
sort.set_lm(TypeSafe("m", api_key="k", base_url=URL, cache=False))
found = sort(text=TEXT)
assert found.kind.value in LABELS, found
assert abs(sum(found.kind.probabilities.values()) - 1.0) < 1e-6, found
assert 0.0 <= found.late.probability <= 1.0, found

asked = {"kind": {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(LABELS)}}
one = litellm.systemone(model="hosted_vllm/m", api_base=URL, state=TEXT, questions=asked)
kind = one.answers["kind"]
assert list(kind.probabilities) == LABELS, one
assert kind.x_decision is None, one

choices = [{"value": label} for label in LABELS]
listed = litellm.decisions(
    model="openai/gpt-6-luna",
    api_base=f"{URL}/v1",
    api_key="k",
    input=TEXT,
    questions=[{"type": "choice", "name": "kind", "instructions": "Which?", "choices": choices}],
)
(answer,) = listed.answers
assert answer.choice == kind.choice, listed
assert [share.probability for share in answer.probabilities] == list(kind.probabilities.values())
