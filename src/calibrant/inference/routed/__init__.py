"""Several providers as one client: a strategy says who is asked first, and learns from what came."""

from calibrant.inference.routed._client import RoutedClient
from calibrant.inference.routed._helper import HelperStats
from calibrant.inference.routed._provider import Provider, ProviderStats

__all__ = ["HelperStats", "Provider", "ProviderStats", "RoutedClient"]
