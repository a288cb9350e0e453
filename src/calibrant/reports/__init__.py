"""Run directories and plans as pages a person reads; never calls a model."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.reports._html import write_report
    from calibrant.reports._trade import TradePoint, trade_chart, write_trade
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._html": "write_report",
            "._trade": "TradePoint trade_chart write_trade",
        },
    )

__all__ = [
    "TradePoint",
    "trade_chart",
    "write_report",
    "write_trade",
]
