"""Tests of POMDP files: every number is read exactly, and mistakes have their lines."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.cascade import POMDPMetaVerifier, read_pomdp
from calibrant.cascade.automix._pomdp_file import PomdpSpecification
from calibrant.core import ConfigurationError, DataError

TIGER = """# The textbook's tiger, in the ways the format allows.
discount: 0.95
values: reward
states: left right
actions: listen open-left open-right
observations: hear-left hear-right
start: uniform
T: listen
identity
T: open-left
uniform
T:open-right:*
0.5 0.5
O: *
uniform
O: listen : left : hear-left 0.85
O: listen : left : hear-right 0.15
O: listen : right
0.15 0.85
R: listen : * : * : * -1
R: open-left : left : * : * -100   # eaten
R: 1 : right
10 10
10 10
R: open-right : left : *
10 10
R: open-right : right : * : * -100
"""


def same(one: PomdpSpecification, other: PomdpSpecification) -> bool:
    """Return whether two POMDPs are equal to the last bit."""
    tables = ("start", "transition", "observation", "reward")
    equal = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in tables)
    return equal and one == other


def parsed(text: str, folder: Path) -> PomdpSpecification:
    """Return the POMDP that a file with this text holds."""
    place = folder / "any.POMDP"
    place.write_text(text)
    return read_pomdp(place)


def as_text(spec: PomdpSpecification) -> str:
    """Return a POMDP as a file that names every number."""
    lines = [f"discount: {spec.discount!r} values: reward"]
    lines += [f"{kind}: {' '.join(getattr(spec, kind))}" for kind in ("states", "actions", "observations")]
    lines.append(f"start: {' '.join(map(repr, spec.start.tolist()))}")
    axes = {
        "T": (spec.transition, (spec.actions, spec.states, spec.states)),
        "O": (spec.observation, (spec.actions, spec.states, spec.observations)),
        "R": (spec.reward, (spec.actions, spec.states, spec.states, spec.observations)),
    }
    for letter, (table, names) in axes.items():
        values = table.ravel().tolist()
        for where, value in zip(itertools.product(*names), values, strict=True):
            lines.append(f"{letter}: {' : '.join(where)} {value!r}")
    return "\n".join(lines)


def test_a_textbook_file_is_read(tmp_path: Path) -> None:
    """Numbers, rows, matrices, wildcards, positions, comments and overriding entries are read."""
    spec = parsed(TIGER, tmp_path)
    assert spec.states == ("left", "right")
    assert spec.actions == ("listen", "open-left", "open-right")
    assert spec.start.tolist() == [0.5, 0.5]
    assert spec.transition[0].tolist() == [[1, 0], [0, 1]]
    assert spec.transition[2].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert spec.observation[0].tolist() == [[0.85, 0.15], [0.15, 0.85]]
    assert spec.observation[1].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert (spec.reward[0] == -1).all()
    assert (spec.reward[1, 0] == -100).all()
    assert (spec.reward[1, 1] == 10).all()
    assert (spec.reward[2, 0] == 10).all()
    assert spec.discount == 0.95


def test_a_start_may_be_one_state(tmp_path: Path) -> None:
    """A start that names one state gives it probability 1."""
    assert parsed(HEAD + "start: b\n" + BODY, tmp_path).start.tolist() == [0.0, 1.0]


def test_costs_and_counts_are_converted(tmp_path: Path) -> None:
    """Costs are read as negative rewards and counts as names; without a start all states are equal."""
    spec = parsed(
        "discount: 1 values: cost states: 2 actions: 1 observations: 2\nT: 0 identity O: 0 uniform R: 0 : 1 : * : * 3",
        tmp_path,
    )
    assert spec.states == ("state0", "state1")
    assert spec.reward[0, 1, 0, 0] == -3.0
    assert spec.start.tolist() == [0.5, 0.5]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_any_pomdp_is_read(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The tables of a random POMDP of any size are read to the last bit."""
    rng = np.random.default_rng(seed)
    s, a, o = (int(n) for n in rng.integers(1, 4, 3))
    reward = np.where(rng.random((a, s, s, o)) < 0.5, 0.0, rng.normal(0, 100, (a, s, s, o)))
    spec = PomdpSpecification(
        states=tuple(f"S_{i}" for i in range(s)),
        actions=tuple(f"act-{i}" for i in range(a)),
        observations=tuple(f"o.{i}" for i in range(o)),
        start=rng.dirichlet(np.ones(s)),
        transition=rng.dirichlet(np.ones(s), (a, s)),
        observation=rng.dirichlet(np.ones(o), (a, s)),
        reward=reward,
        discount=float(rng.random()),
    )
    assert same(parsed(as_text(spec), tmp_path_factory.getbasetemp()), spec)


@pytest.mark.parametrize("form", ["functional", "discrete"])
def test_a_meta_verifier_is_made_of_a_file(form: str, tmp_path: Path) -> None:
    """A fitted meta-verifier that is written and read routes the same scores."""
    rng = np.random.default_rng(1)
    state = rng.choice(3, 500, p=[0.5, 0.3, 0.2])
    scores = rng.binomial(8, np.array([0.9, 0.5, 0.2])[state]) / 8
    fitted = POMDPMetaVerifier(form=form)  # type: ignore[arg-type]
    fitted.fit(scores, state == 0, state < 2, small_cost=1, large_cost=50, verifier_cost=1)
    spec = parsed(as_text(fitted.specification()), tmp_path)
    assert same(spec, fitted.specification())
    assert (spec.reward[spec.actions.index("Trust_SLM")] == 0.0).all()
    assert spec.states[3:] == ("SIMPLE", "COMPLEX", "UNSOLVABLE")
    assert len(spec.observations) == 9
    again = POMDPMetaVerifier.from_specification(spec)
    grid = np.linspace(0, 1, 101)
    assert (again.route(grid) == fitted.route(grid)).all()
    assert again.gain(grid) == pytest.approx(fitted.gain(grid) - fitted.price_ * 50)


def test_rewards_of_a_file_are_followed(tmp_path: Path) -> None:
    """Gains are those of the file's own rewards under the belief after the look."""
    spec = parsed(
        """discount: 0.99
        values: reward
        states: SIMPLE COMPLEX
        actions: Init Trust_SLM Invoke_LLM
        observations: low high
        start: 0.7 0.3
        T: *
        identity
        O: * : SIMPLE
        0.5 0.5
        O: * : COMPLEX
        1.0 0.0
        R: Trust_SLM : COMPLEX : * : * -10
        R: Invoke_LLM : COMPLEX : * : * 50
        R: Invoke_LLM : SIMPLE : * : * -20
        """,
        tmp_path,
    )
    followed = POMDPMetaVerifier.from_specification(spec)
    assert followed.gain([0.0, 1.0]) == pytest.approx([(0.3 * 60 - 0.35 * 20) / 0.65, -20.0])
    assert followed.route([0.0, 1.0]).tolist() == [True, False]


def test_other_pomdps_are_not_followed(tmp_path: Path) -> None:
    """Two actions, or the continuous form, raise ConfigurationError."""
    two = "discount: 1 values: reward states: 1 actions: 2 observations: 2 T: * identity O: * uniform"
    with pytest.raises(ConfigurationError, match="three actions"):
        POMDPMetaVerifier.from_specification(parsed(two, tmp_path))
    fitted = POMDPMetaVerifier(form="continuous", price=0.0)
    fitted.fit([0.5], [0], [1], small_cost=1, large_cost=5, verifier_cost=0)
    with pytest.raises(ConfigurationError, match="continuous"):
        fitted.specification()


HEAD = "discount: 1\nvalues: reward\nstates: a b\nactions: x\nobservations: o p\n"
HUGE = "discount: 1\nvalues: reward\nstates: 9999\nactions: 9999\nobservations: 2\n"
BODY = "T: x\nidentity\nO: x\nuniform\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "discount and values"),
        ("discount 0.9", 1, "':'"),
        ("discount: x", 1, "finite number"),
        ("states: a a", 1, "different names"),
        ("discount: 1.5", 1, r"\[0, 1\]"),
        ("discount: 1\ndiscount: 1", 2, "once"),
        ("discount: 1\nvalues: money", 2, "reward"),
        ("states: 0", 1, "1 to 10000"),
        ("T: x", 1, "before 'T'"),
        (HEAD + "start: 0.5 0.6", 6, "sum to 1"),
        (HEAD + "start: include a", 6, "include"),
        ("start: 0.5 0.5", 1, "before 'start'"),
        (HEAD + "start: 0.5", 6, "2 numbers"),
        (HEAD + "T: y\nidentity", 6, "one of the actions"),
        (HEAD + "T: x\n1 0 0", 6, "4 numbers"),
        (HEAD + "T: x\nidentity", 7, "'O: x : a', got none"),
        (HEAD + "T: x\nidentity\nO: x\n0.5 0.5\n0.5 0.6", 8, "sum to 1"),
        (HEAD + BODY + "R: x 5", 10, "a state behind"),
        (HUGE + "T: 0\nidentity", 6, "at most"),
    ],
)
def test_bad_files_are_refused_by_line(text: str, line: int, message: str, tmp_path: Path) -> None:
    """A mistake in a file raises DataError with its line."""
    with pytest.raises(DataError, match=message) as refused:
        parsed(text, tmp_path)
    assert refused.value.line == line
    assert f"any.POMDP:{line}: " in str(refused.value)


def test_unreadable_files_are_data_errors(tmp_path: Path) -> None:
    """A missing file, or one that is no text, raises DataError."""
    with pytest.raises(DataError, match="can be read"):
        read_pomdp(tmp_path / "none.POMDP")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="UTF-8"):
        read_pomdp(tmp_path / "binary")


@pytest.mark.parametrize(
    "changed",
    [
        {"states": ("a", "a")},
        {"states": ("a", "T")},
        {"start": np.array([0.5, 0.6])},
        {"transition": np.full((1, 2, 2), 0.4)},
        {"reward": np.full((1, 2, 2, 2), np.nan)},
        {"discount": 2.0},
    ],
)
def test_wrong_specifications_are_refused(changed: dict[str, object], tmp_path: Path) -> None:
    """Wrong names, shapes or sums raise ConfigurationError."""
    good = parsed(HEAD + BODY, tmp_path)
    options = {name: getattr(good, name) for name in good.__dataclass_fields__}
    with pytest.raises(ConfigurationError, match="Expected"):
        PomdpSpecification(**{**options, **changed})
