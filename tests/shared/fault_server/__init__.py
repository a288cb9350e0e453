"""An OpenAI-compatible loopback server with scripted faults for tests, examples and benchmarks."""

from fault_server._faults import Fault
from fault_server._records import RecordedRequest
from fault_server._server import FaultServer

__all__ = ["Fault", "FaultServer", "RecordedRequest"]
