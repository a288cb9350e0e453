"""Run directories, plans and simulations as pages a person reads; never calls a model."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.reports._html import write_report
    from calibrant.reports._regret import (
        RegretCurve,
        RewardEstimate,
        SimulationChart,
        regret_chart,
        reward_chart,
        write_simulation,
    )
    from calibrant.reports._trade import TradePoint, trade_chart, write_trade
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._html": "write_report",
            "._regret": (
                "RegretCurve RewardEstimate SimulationChart regret_chart reward_chart write_simulation"
            ),
            "._trade": "TradePoint trade_chart write_trade",
        },
    )

__all__ = [
    "RegretCurve",
    "RewardEstimate",
    "SimulationChart",
    "TradePoint",
    "regret_chart",
    "reward_chart",
    "trade_chart",
    "write_report",
    "write_simulation",
    "write_trade",
]
