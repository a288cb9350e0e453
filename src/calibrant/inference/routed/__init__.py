"""Several providers as one client: a strategy says who is asked first, and learns from what came."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.inference.routed._client import RoutedClient
    from calibrant.inference.routed._helper import HelperStats
    from calibrant.inference.routed._provider import Provider, ProviderStats
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._client": "RoutedClient",
            "._helper": "HelperStats",
            "._provider": "Provider ProviderStats",
        },
    )

__all__ = ["HelperStats", "Provider", "ProviderStats", "RoutedClient"]
