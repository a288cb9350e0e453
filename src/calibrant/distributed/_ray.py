"""Ray Data between the reader, the workers and the run: the only module that imports ray."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

from calibrant.core import ConfigurationError, StateError
from calibrant.distributed._settings import Cluster
from calibrant.distributed._worker import Answered, Reader, Worker
from calibrant.inference import Classifier, Limits

__all__ = ["answered_blocks", "connected", "require_ray"]

_RETRIES: Final = 5  # of a block whose worker died


def require_ray() -> Any:  # noqa: ANN401 (an optional module)
    """Return the module ray, with Ray Data.

    Raises
    ------
    ConfigurationError
        It is not installed.
    """
    try:
        importlib.import_module("ray.data")
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigurationError(
            f'Several workers need Ray Data, which is not installed ({error}): run pip install "calibrant[ray]".'
        ) from error


@contextlib.contextmanager
def connected(cluster: Cluster) -> Iterator[None]:
    """Connect to the cluster, or start one on this machine, unless this process is connected already.

    Raises
    ------
    ConfigurationError
        There is no cluster at the address, it runs another version of Python or Ray, or it has too few CPUs.
    """
    ray = require_ray()
    own = not ray.is_initialized()
    if own:
        _connect(ray, cluster)
    elif cluster.address is not None:
        raise ConfigurationError(
            f"Expected no address, as this process is connected to a Ray cluster already, got {cluster.address!r}: "
            "leave it out, or call ray.shutdown() first."
        )
    try:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus < cluster.workers:
            raise ConfigurationError(
                f"Expected a Ray cluster with a CPU for each of {cluster.workers} workers, got {cpus}: take fewer "
                "workers, or add machines."
            )
        yield
    finally:
        if own:
            ray.shutdown()


def _connect(ray: Any, cluster: Cluster) -> None:  # noqa: ANN401
    quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        if cluster.address is not None or os.environ.get("RAY_ADDRESS"):
            ray.init(address=cluster.address, **quiet)
        else:
            ray.init(address="local", num_cpus=cluster.workers, include_dashboard=False, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"Expected a Ray cluster at {cluster.address or 'this machine'} with the Python, Ray and calibrant of this "
            f"machine, got none that can be used ({' '.join(str(error).split())}): check the address, and install "
            "the same versions there."
        ) from error


def answered_blocks(
    reader: Reader,
    opening: Callable[..., Classifier],
    *,
    cluster: Cluster,
    limits: Limits,
    cache: str | None,
) -> Generator[Answered, None, None]:
    """Yield the blocks as they are answered, in any order; the last ones wait until they are taken.

    Parameters
    ----------
    reader : Reader
        The rows; they are read on this machine, as they are wanted.
    opening : callable
        Returns a worker's classifier.
    cluster : Cluster
        How many workers there are.
    limits : Limits
        One worker's share.
    cache : str or None
        URL or file of finished predictions.

    Raises
    ------
    StateError
        A worker could not be started, or died again and again.
    """
    ray = require_ray()
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    with _small_blocks(ray):
        # The reader takes no CPU: it would keep a worker from starting.
        rows = ray.data.from_items([0]).map_batches(
            reader,
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=0,
            ray_remote_args_fn=lambda: {"scheduling_strategy": here},
        )
        answers = rows.map_batches(
            Worker,
            fn_constructor_args=(opening, limits, cache),
            batch_size=1,
            batch_format="pyarrow",
            concurrency=cluster.workers,
            num_cpus=1,
            ray_remote_args_fn=lambda: {"max_restarts": -1, "max_task_retries": _RETRIES},
        )
    try:
        for batch in answers.iter_batches(batch_size=1, batch_format="pyarrow", prefetch_batches=0):
            yield from (Answered(**row) for row in batch.to_pylist())
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise StateError(
            f"The workers cannot go on ({reason}): what was answered is kept; see Ray's log of the worker."
        ) from error


@contextlib.contextmanager
def _small_blocks(ray: Any) -> Iterator[None]:  # noqa: ANN401
    """Let Ray Data hand on every block of rows by itself, and keep quiet; the user's settings come back."""
    context = ray.data.DataContext.get_current()
    wished = {"target_max_block_size": 1, "enable_progress_bars": False}
    before = {name: getattr(context, name) for name in wished}
    for name, value in wished.items():
        setattr(context, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
