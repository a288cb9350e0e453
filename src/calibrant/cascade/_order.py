"""Which model of a cascade is asked first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias, get_args

from calibrant.cascade._checks import check_share
from calibrant.cascade._models import CascadeModel
from calibrant.core._errors import ConfigurationError

EscalationOrder: TypeAlias = Literal["small_to_large", "size", "declared", "cost", "automix"]

# What a model of unknown quality is taken for, and how quality is guessed from a size (in billions).
_QUALITY: Final = 0.5
_LEAST_QUALITY: Final = 0.3
_LARGE: Final = 70.0


def escalated(
    models: Sequence[CascadeModel], order: EscalationOrder, *, tradeoff: float = 0.3
) -> tuple[list[int], EscalationOrder]:
    """Return the places of the models in the order in which they are asked, and what that order is.

    Equals keep their order.

    Parameters
    ----------
    models : sequence of CascadeModel
        As declared.
    order : {"small_to_large", "size", "declared", "cost", "automix"}
        ``small_to_large`` and ``size`` go by the number of parameters; where no model has one, the
        order is as declared. ``cost`` goes by cost. ``automix`` sorts by
        ``(1 - t) * quality + t * expense``, both in [0, 1] and growing: with t = 1 the cheapest
        comes first, with t = 0 the weakest. Of two models the one that is no better and no dearer thus
        always comes first. A quality that is not given is ``0.3 + 0.7 * min(billions / 70, 1)``, or 0.5
        without a size. Expense is the cost between the least and the greatest; 0.5 where all are
        equal or none is known.
    tradeoff : float, default 0.3
        The t of ``automix``, in [0, 1].

    Raises
    ------
    ConfigurationError
        An unknown order, or a number it needs that some models have and others have not.
    """
    _check(order, tradeoff)
    places = range(len(models))
    if order == "declared":
        return list(places), order
    if order == "cost":
        keys = _all_known(models, "cost", order, lambda model: model.cost)
        if keys is None:
            raise ConfigurationError(
                "Expected the cost of every model with escalation_order='cost', got none: give cost=... to every "
                "CascadeModel, or take escalation_order='declared'."
            )
    elif order == "automix":
        keys = _tradeoff(models, tradeoff)
    else:
        keys = _all_known(models, "size", order, lambda model: model.billions)
        if keys is None:
            return list(places), "declared"
    return sorted(places, key=keys.__getitem__), order


def _check(order: str, tradeoff: float) -> None:
    if order not in get_args(EscalationOrder):
        raise ConfigurationError(
            f"Expected escalation_order to be one of {', '.join(get_args(EscalationOrder))}, got {order!r}."
        )
    check_share("cost_quality_tradeoff", tradeoff)


def _all_known(
    models: Sequence[CascadeModel], what: str, order: str, read: Callable[[CascadeModel], float | None]
) -> list[float] | None:
    """Return the number of every model, None where no model has one; refuse gaps."""
    numbers = [read(model) for model in models]
    known = [number for number in numbers if number is not None]
    if not known:
        return None
    if len(known) < len(numbers):
        missing = [model.label for model, number in zip(models, numbers, strict=True) if number is None]
        raise ConfigurationError(
            f"Expected the {what} of every model with escalation_order={order!r}, but {', '.join(missing)} "
            f"{'has' if len(missing) == 1 else 'have'} none: give {what}=... to every CascadeModel, or take "
            "escalation_order='declared'."
        )
    return known


def _tradeoff(models: Sequence[CascadeModel], tradeoff: float) -> list[float]:
    costs = _all_known(models, "cost", "automix", lambda model: model.cost) if tradeoff else None
    expenses = [0.5] * len(models)
    if costs is not None and max(costs) > min(costs):
        least, width = min(costs), max(costs) - min(costs)  # costs are >= 0, so no difference overflows
        expenses = [(cost - least) / width for cost in costs]
    return [
        (1.0 - tradeoff) * _quality(model) + tradeoff * expense
        for model, expense in zip(models, expenses, strict=True)
    ]


def _quality(model: CascadeModel) -> float:
    if model.quality is not None:
        return model.quality
    if model.billions is None:
        return _QUALITY
    return _LEAST_QUALITY + (1.0 - _LEAST_QUALITY) * min(model.billions / _LARGE, 1.0)
