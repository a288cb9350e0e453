"""``python examples/routing_simulation SOURCE...``, from wherever it is called."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from routing_simulation._command import app

if __name__ == "__main__":
    app(prog_name="python examples/routing_simulation")
