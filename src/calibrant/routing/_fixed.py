"""Orders that are declared: strategies that learn nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from calibrant.routing._base import CountingRouter
from calibrant.routing._checks import check_known, check_table
from calibrant.routing._protocol import RoutingRequest


class FixedRouter(CountingRouter):
    """Asks providers in the order in which they were declared.

    Parameters
    ----------
    providers : sequence of str
        At least one, each once.
    rng : Generator or int, optional
        Not used; every strategy takes it.

    Raises
    ------
    ConfigurationError
        The providers cannot be used.
    """

    strategy = "none"

    def order(self, request: RoutingRequest | None = None) -> list[str]:  # noqa: ARG002
        """Return all providers as they were declared."""
        return list(self._providers)


class TaskRouter(CountingRouter):
    """Asks the provider first that a table names for the request's task, then the others as declared.

    A request without a task, or of one that is not in the table, keeps the declared order.

    Parameters
    ----------
    providers : sequence of str
        At least one, each once.
    tasks : mapping of str to str
        The provider of every task, by the task's name.
    rng : Generator or int, optional
        Not used; every strategy takes it.

    Raises
    ------
    ConfigurationError
        The providers cannot be used, or the table names one that is not among them.
    """

    strategy = "task"

    def __init__(
        self,
        providers: Sequence[str],
        *,
        tasks: Mapping[str, str],
        rng: np.random.Generator | int | None = None,
    ) -> None:
        super().__init__(providers, rng=rng)
        table = check_table("tasks", tasks)
        check_known("tasks", table.values(), self._providers)
        self._orders = {
            task: [first, *(name for name in self._providers if name != first)]
            for task, first in table.items()
        }

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return all providers, the task's at the front."""
        task = None if request is None else request.task
        return list(self._orders.get(task, self._providers) if task is not None else self._providers)
