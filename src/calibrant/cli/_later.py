"""Groups of commands whose module is imported when one of them is called: the list of commands stays quick."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class _Later(TyperCommand):
    """Stands for a group in the list of commands.

    Parameters
    ----------
    name : str
        Name of the group.
    help : str
        Help text in the list of commands.
    module : str
        Module with the group's `typer.Typer`, under the group's name.
    """

    def __init__(self, name: str, help: str, module: str) -> None:  # noqa: A002  (typer's name)
        super().__init__(name, help=help)
        self._module = module

    def make_context(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  (typer keeps its own copy of click)
        """Return the context of the real group, which then goes on."""
        group = get_command(getattr(importlib.import_module(self._module), str(self.name)))
        group.name, group.help = self.name, self.help
        return group.make_context(*args, **options)


class RootGroup(TyperGroup):
    """The commands of the program, its groups among them."""

    groups: ClassVar[dict[str, tuple[str, str]]] = {
        "batch": ("Classify at a provider's batch interface: cheaper, done within 24 hours.", "_batch"),
        "history": ("Scores of evaluators in a database, and intervals over the latest of them.", "_history"),
        "cascade": (
            "The cheapest model that is sure enough: planned from recorded runs, without a call.",
            "_plan_commands",
        ),
        "router": ("Learned records of the providers that routers choose from.", "_router"),
        "verifier": (
            "AutoMix's verifier: a model is asked several times whether an answer is right.",
            "_verifier",
        ),
    }

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        for name, (said, module) in self.groups.items():
            self.add_command(_Later(name, said, f"calibrant.cli.{module}"))
