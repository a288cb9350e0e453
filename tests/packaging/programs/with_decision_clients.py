"""Ask a service of typed decisions with clients that know nothing of it; its address is the argument."""

import sys

import openai
from langchain_openai import OpenAIDecisions
from langchain_openai import decisions as langchain
from langchain_typesafe import TypeSafeClassifier
from typesafe_sdk import Choice, Noul, RetryPolicy, Score, TypeSafeClient

URL = sys.argv[1]
TEXT = "The parcel came two weeks late, and nobody answers the phone."
LABELS = ["praise", "complaint"]
QUESTIONS = [
    {
        "type": "choice",
        "name": "kind",
        "instructions": "Which?",
        "choices": [{"value": label} for label in LABELS],
    },
    {"type": "predicate", "name": "late", "instructions": "Something came late."},
    {
        "type": "score",
        "name": "anger",
        "instructions": "How angry?",
        "levels": [{"label": "calm"}, {"label": "angry"}],
    },
]


def check(kind: object, shares: dict[str, float], late: float, score: float) -> None:
    """Check the answers to the three questions."""
    assert kind in LABELS, kind
    assert list(shares) == LABELS, shares
    assert abs(sum(shares.values()) - 1.0) < 1e-6, shares
    assert kind == max(shares, key=shares.__getitem__), (kind, shares)
    assert 0.0 <= late <= 1.0, late
    assert 0.0 <= score <= 1.0, score


def ask_openai() -> None:
    """Ask with OpenAI's client, which reads the header, the models and the errors, too."""
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="k", max_retries=0)
    raw = client.decisions.with_raw_response.create(model="m", input=TEXT, questions=QUESTIONS)
    assert raw.headers["x-calibrant-decision"] == "undecided, uncalibrated, uncalibrated"
    found = raw.parse()
    kind, late, anger = found.answers
    check(
        kind.choice,
        {share.value: share.probability for share in kind.probabilities},
        late.probability,
        anger.score,
    )
    assert found.usage.total_tokens == 0, found.usage
    assert [model.id for model in client.models.list()] == ["letters"]
    refused = None
    try:
        client.decisions.create(model="m", input=TEXT, questions=[{**QUESTIONS[0], "choices": []}])
    except openai.BadRequestError as error:
        refused = error.body["param"]
    assert refused == "questions[0].choices", refused


def ask_typesafe() -> None:
    """Ask with TypeSafe's client."""
    questions = {
        "kind": Choice(instructions="Which?", criteria=dict.fromkeys(LABELS)),
        "late": Noul(instructions="Did something come late?"),
        "anger": Score(instructions="How angry?", criteria=["calm", "angry"]),
    }
    with TypeSafeClient(base_url=URL, api_key="k", retry=RetryPolicy(max_retries=0)) as client:
        found = client.system_one(TEXT, questions)
        models = client.models.list().models
    kind = found.choices["kind"]
    check(kind.choice, dict(kind.probabilities), found.nouls["late"].noul, found.scores["anger"].score)
    assert [model.name for model in models] == ["letters"], models


def ask_langchain() -> None:
    """Ask with both classes of langchain."""
    found = OpenAIDecisions(model="m", api_key="k", base_url=f"{URL}/v1").invoke(
        {
            "input": TEXT,
            "questions": {
                "kind": langchain.Choice(instructions="Which?", choices=dict.fromkeys(LABELS)),
                "late": langchain.Predicate(instructions="Something came late."),
            },
        }
    )
    assert found.answers["kind"].choice in LABELS, found
    assert 0.0 <= found.answers["late"].probability <= 1.0, found
    questions = {"kind": Choice(instructions="Which?", criteria=dict.fromkeys(LABELS))}
    asked = TypeSafeClassifier(base_url=URL, api_key="k").invoke({"state": TEXT, "questions": questions})
    assert asked.choices["kind"].choice in LABELS, asked


ask_openai()
ask_typesafe()
ask_langchain()
