"""Run directories and plans as pages a person reads; never calls a model."""

from calibrant.reports._html import write_report
from calibrant.reports._trade import TradePoint, trade_chart, write_trade

__all__ = [
    "TradePoint",
    "trade_chart",
    "write_report",
    "write_trade",
]
