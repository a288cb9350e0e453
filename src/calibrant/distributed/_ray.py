"""Use of Ray and Ray Data by a run; the only module that imports ray."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._installation import install_command
from calibrant.core._limits import Limits
from calibrant.core._predictor import Predictor
from calibrant.distributed._ledger import Ledger
from calibrant.distributed._worker import AnsweredBlock, Reader, Worker

_P = ParamSpec("_P")
_T = TypeVar("_T")

_CLIENT: Final = "ray://"
_REACH_SECONDS: Final = 10.0
# Ray's execution plans and progress reports: calibrant shows its own progress.
_LOGGED: Final = {"ray.data": logging.WARNING, "ray.data._internal.progress": logging.ERROR}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Address, number of workers and block size of a Ray cluster.

    Attributes
    ----------
    address : str or None
        Address of a running Ray cluster that includes this machine, such as ``auto`` or ``10.0.0.1:6379``. None takes
        the cluster that this process is connected to, or the one that ``RAY_ADDRESS`` names, or else starts Ray on
        this machine for the run.
    workers : int, default 2
        Processes that ask, each with a client of its own and one CPU of the cluster; at least 1.
    block_rows : int, default 1024
        Rows per block, at least 1. At most one block is asked again when a worker dies.

    Raises
    ------
    ConfigurationError
        A number is below 1.

    Examples
    --------
    >>> from calibrant.distributed import Cluster
    >>> Cluster(address="10.0.0.1:6379", workers=8)
    Cluster(address='10.0.0.1:6379', workers=8, block_rows=1024)
    """

    address: str | None = None
    workers: int = 2
    block_rows: int = 1024

    def __post_init__(self) -> None:
        for name in ("workers", "block_rows"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"Expected {name} to be an integer of at least 1, got {value!r}.")


def require_ray() -> Any:  # noqa: ANN401 (an optional module)
    """Return the module ray, with Ray Data.

    Raises
    ------
    ConfigurationError
        Ray is not installed.
    """
    try:
        importlib.import_module("ray.data")
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigurationError(
            f"Several workers need Ray Data, which is not installed ({error}): run {install_command('ray')}."
        ) from error


@contextlib.contextmanager
def connected(cluster: Cluster, *, shares_a_file: bool = False) -> Iterator[None]:
    """Connect to the cluster, or start one on this machine, unless this process is connected already.

    Parameters
    ----------
    cluster : Cluster
        Address and size of the cluster.
    shares_a_file : bool, default False
        True if the workers write to the same file, which they can on one machine only.

    Raises
    ------
    ConfigurationError
        There is no cluster at the address, it runs another version of Python, Ray or calibrant, it has too few
        CPUs, or several machines where one file is shared.
    """
    ray = require_ray()
    starts_ray = not ray.is_initialized()
    if starts_ray:
        _connect(ray, cluster)
    elif cluster.address is not None:
        raise ConfigurationError(
            f"Expected no address, as this process is connected to a Ray cluster already, got {cluster.address!r}: "
            "leave it out, or call ray.shutdown() first."
        )
    try:
        _check_machines(ray, cluster, shares_a_file=shares_a_file)
        with warnings.catch_warnings():  # a run of few blocks leaves some workers idle
            warnings.filterwarnings("ignore", "The minimum number of concurrent actors")
            yield
    finally:
        if starts_ray:
            ray.shutdown()


def _connect(ray: Any, cluster: Cluster) -> None:  # noqa: ANN401
    quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
    address = cluster.address or os.environ.get("RAY_ADDRESS") or None
    if address is not None and address.startswith(_CLIENT):
        raise ConfigurationError(
            f"Expected the address of a cluster that this machine is a part of, such as auto or HOST:6379, got "
            f"{address!r}: rows are read and written where the run is started, so start it on a machine of the "
            "cluster, or with ray job submit."
        )
    _reach(address)
    for name, level in _LOGGED.items():
        logging.getLogger(name).setLevel(level)
    try:
        with _signals_kept():
            if address is not None:
                ray.init(address=address, **quiet)
            else:
                ray.init(address="local", num_cpus=cluster.workers, include_dashboard=False, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"Expected a Ray cluster at {address or 'this machine'} with the Python, Ray and calibrant of this "
            f"machine, got none that can be used ({' '.join(str(error).split())}): check the address, and install "
            "the same versions there."
        ) from error


def _reach(address: str | None) -> None:
    """Raise ConfigurationError for an address that does not answer; Ray would retry for minutes."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"Expected a Ray cluster at {address}, found nobody there ({error}): check the address with ray status."
        ) from error


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM: Ray's own would end this process and lose the rows under way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_machines(ray: Any, cluster: Cluster, *, shares_a_file: bool) -> None:  # noqa: ANN401
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if cpus < cluster.workers:
        raise ConfigurationError(
            f"Expected a Ray cluster with a CPU for each of {cluster.workers} workers, got {cpus}: take fewer "
            "workers, or add machines."
        )
    machines = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    if shares_a_file and len(machines) > 1:
        raise ConfigurationError(
            f"Expected a cache that {len(machines)} machines can share, got a SQLite file: name a database server "
            "(postgresql://USER:PASSWORD@HOST/NAME), or leave the cache out."
        )
    _check_versions(ray, machines)


def _check_versions(ray: Any, machines: list[Any]) -> None:  # noqa: ANN401
    def version() -> str:  # travels with its code: calibrant may be missing there
        from importlib import metadata  # noqa: PLC0415

        try:
            return metadata.version("calibrant")
        except metadata.PackageNotFoundError:
            return "none"

    here = _own_version()
    there = ray.remote(version)
    asked = [(node, there.options(num_cpus=0, **_on(node["NodeID"])).remote()) for node in machines]
    for node, reference in asked:
        found = ray.get(reference)
        if found != here:
            raise ConfigurationError(
                f"Expected calibrant {here} on every machine of the Ray cluster, got {found} on "
                f"{node['NodeManagerAddress']}: install the same version there."
            )


def _own_version() -> str:
    return metadata.version("calibrant")


def _on(node: str) -> dict[str, Any]:
    """Return the options of a task or actor that runs on one machine."""
    return {"label_selector": {"ray.io/node-id": node}}


@dataclass(frozen=True)
class RemoteLedger:
    """Handle on a `Ledger` in a process of its own; all copies share that ledger.

    Attributes
    ----------
    actor : object
        Ray's handle of it.
    """

    actor: Any

    def ask(self, method: Callable[Concatenate[Ledger, _P], _T], *args: _P.args, **options: _P.kwargs) -> _T:
        """Call a method of the ledger, and wait for its result."""
        ray = require_ray()
        try:
            return ray.get(self._call(method, *args, **options))  # type: ignore[no-any-return]
        except ray.exceptions.RayError as error:
            raise _cannot_go_on(error) from error

    def tell(
        self, method: Callable[Concatenate[Ledger, _P], _T], *args: _P.args, **options: _P.kwargs
    ) -> Future[_T]:
        """Call a method of the ledger, and return the future of its result; Ray keeps the order of calls."""
        return self._call(method, *args, **options).future()  # type: ignore[no-any-return]

    def _call(self, method: Callable[..., object], *args: object, **options: object) -> Any:  # noqa: ANN401
        return getattr(self.actor, method.__name__).remote(*args, **options)


@contextlib.contextmanager
def opened_ledger(limits: Limits, *, workers: int) -> Iterator[RemoteLedger]:
    """Start the ledger's process on this machine; end it with the context."""
    ray = require_ray()
    here = _on(ray.get_runtime_context().get_node_id())
    actor = ray.remote(Ledger).options(num_cpus=0, **here).remote(limits, workers)
    try:
        yield RemoteLedger(actor)
    finally:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(actor)


def answered_blocks(
    reader: Reader,
    opening: Callable[..., Predictor],
    *,
    cluster: Cluster,
    limits: Limits,
    cache: str | None,
    ledger: RemoteLedger,
) -> Generator[AnsweredBlock, None, None]:
    """Yield answered blocks in any order; workers wait while blocks are not consumed.

    No further block is read once the ledger is closed. Exhaust the iterator: Ray Data fails if it is left early.

    Parameters
    ----------
    reader : Reader
        The rows; they are read on this machine, as they are wanted.
    opening : callable
        Returns a worker's classifier.
    cluster : Cluster
        Number of workers and rows per block.
    limits : Limits
        One worker's calls in flight, and the rates and budgets of all.
    cache : str or None
        URL or file of finished predictions.
    ledger : RemoteLedger
        Keeps the rates and budgets of all workers.

    Raises
    ------
    StateError
        A worker could not be started, or died again and again.
    """
    ray = require_ray()
    here = _on(ray.get_runtime_context().get_node_id())
    with _quiet_small_blocks(ray):
        # The reader reserves no CPU, which would keep a worker from starting.
        rows = ray.data.from_items([0]).map_batches(
            replace(reader, book=ledger), batch_size=None, batch_format="pyarrow", num_cpus=0, **here
        )
        answers = rows.map_batches(
            Worker,
            fn_constructor_args=(opening, limits, cluster.workers, cache, ledger),
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=cluster.workers),
            num_cpus=1,  # Ray restarts dead workers without end: the ledger counts them
        )
    try:
        # Runs to the end even after a stop: Ray Data fails if its iterator is left early.
        for batch in answers.iter_batches(batch_size=1, batch_format="pyarrow", prefetch_batches=0):
            yield from (AnsweredBlock(**row) for row in batch.to_pylist())
    except ray.exceptions.RayError as error:
        raise _cannot_go_on(error) from error


def _cannot_go_on(error: Exception) -> StateError:
    reason = str(error).strip().splitlines()[-1]
    return StateError(
        f"The workers cannot go on ({reason}): what was answered is kept; see Ray's log of the worker."
    )


@contextlib.contextmanager
def _quiet_small_blocks(ray: Any) -> Iterator[None]:  # noqa: ANN401
    """Make Ray Data pass on each block alone and print nothing; restore the user's settings at the end."""
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
