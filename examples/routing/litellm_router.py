"""litellm's own Router, with Thompson sampling to choose among its deployments.

Two loopback servers of this repository stand for real ones: one fails every second request, one none. Take your model
list instead.
"""

from __future__ import annotations

import sys
from pathlib import Path

import litellm

from calibrant.adapters.litellm import LiteLLMRoutingStrategy
from calibrant.routing import ThompsonRouter

# The fault server comes with the tests, not with the package.
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "shared"))
from fault_server import FaultServer


def deployment(name: str, api_base: str) -> dict[str, object]:
    """Return an entry of litellm's model list; without an id of your own, litellm makes one up."""
    return {
        "model_name": "animals",
        "litellm_params": {"model": "openai/m", "api_base": api_base, "api_key": "none"},
        "model_info": {"id": name},
    }


def main() -> None:
    """Ask sixty times, and print what was learnt."""
    with FaultServer(["cat", "dog"], faults={"500": 0.5}) as shaky, FaultServer(["cat", "dog"]) as steady:
        router = litellm.Router(
            model_list=[deployment("shaky", shaky.api_base), deployment("steady", steady.api_base)],
            num_retries=2,
            disable_cooldowns=True,  # else litellm itself would leave out the one that fails
        )
        # state="learnt.json" would keep it for the next run, and share it with other processes.
        strategy = LiteLLMRoutingStrategy(ThompsonRouter).attach(router)
        for number in range(60):
            router.completion(
                model="animals", messages=[{"role": "user", "content": f"Meow, {number} times"}]
            )
        for one in strategy.standings()["animals"]:
            print(f"{one.provider}: {one.observations} calls, mean success {one.values['mean']:.2f}")
        strategy.close()
        router.discard()


if __name__ == "__main__":
    main()
