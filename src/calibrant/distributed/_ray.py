"""Use of Ray and Ray Data by a run, its reader and its workers; the only module that imports ray."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from calibrant.core._errors import CalibrantError, ConfigurationError, ProviderError, StateError
from calibrant.core._installation import install_command
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._predictor import Limits, Predictor, Stop
from calibrant.core._rows import Example
from calibrant.distributed._ledger import BudgetLedger, Leased, Spending
from calibrant.evaluation._data import Dataset, UnlabelledTexts, checked, query_about
from calibrant.evaluation._evaluator import MAX_BYTES
from calibrant.inference._base import run_sync
from calibrant.runs._rows import row_line
from calibrant.runs._shards import FinishedRows, blocks_of
from calibrant.store._cache import PredictionCache

_LOOK_SECONDS: Final = 0.5  # between two checks for a stop of the run
_FAILURES_IN_A_ROW: Final = 100
_DEATHS: Final = 5  # most crashes of workers at one block, or while they open
_SEE_LOG: Final = (
    "see Ray's log of the worker for the reason, such as too little memory or a crash in a library."
)
_DIED_OPENING: Final = f"Workers died again and again while they opened the classifier: {_SEE_LOG}"
_P = ParamSpec("_P")
_T = TypeVar("_T")
_CLIENT: Final = "ray://"
_REACH_SECONDS: Final = 10.0
# Ray's execution plans and progress reports: calibrant shows its own progress.
_LOGGED: Final = {"ray.data": logging.WARNING, "ray.data._internal.progress": logging.ERROR}


class AnsweredBlock(NamedTuple):
    """Answers of one block, and the error that ended it.

    Attributes
    ----------
    block : int
        Number of the block.
    lines : bytes
        Rows as they stand in ``predictions.jsonl``, in the order of the input.
    stopped : str
        Reason that the other rows were not begun (a budget, the end of the run); empty otherwise.
    error : str
        Message of the error; empty otherwise.
    kind : str
        Name of that error's class.
    provider : str
        Provider of a `ProviderError`; empty otherwise.
    """

    block: int
    lines: bytes
    stopped: str
    error: str = ""
    kind: str = ""
    provider: str = ""

    @classmethod
    def fault(cls, block: int, lines: bytes, error: Exception) -> AnsweredBlock:
        """Return a failed block; its error is stored as texts, which can be sent between processes."""
        if isinstance(error, ProviderError):
            message = str(error).removeprefix(f"{error.provider}: ")
            return cls(block, lines, "", message, "ProviderError", error.provider)
        kind = "ConfigurationError" if isinstance(error, ConfigurationError) else "StateError"
        message = str(error) if isinstance(error, CalibrantError) else f"A worker failed: {error!r}."
        return cls(block, lines, "", message, kind)

    def raised(self) -> CalibrantError | None:
        """Return the error of the block; None if it has none."""
        if not self.error:
            return None
        if self.kind == "ProviderError":
            return ProviderError(self.error, provider=self.provider)
        if self.kind == "ConfigurationError":
            return ConfigurationError(self.error)
        return StateError(self.error)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reader that yields unfinished rows in blocks, each block as one Arrow row.

    Attributes
    ----------
    dataset : Dataset
        The rows.
    labels : LabelSet
        Legal labels of their answers.
    block_rows : int
        Rows of a block.
    finished : mapping of int to collection of int
        Places of the finished rows by block.
    book : RemoteLedger or None
        Tells when to stop reading.
    """

    dataset: Dataset | UnlabelledTexts
    labels: LabelSet
    block_rows: int
    finished: FinishedRows = field(default_factory=dict)
    book: RemoteLedger | None = None

    def __call__(self, _batch: object) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 (optional)

        for number, block in blocks_of(checked(self.dataset, self.labels), self.block_rows):
            finished = self.finished.get(number, ())
            rows = [
                (index, row.input, row.answer, row.context, row.source, row.row_id)
                for index, row in block
                if index not in finished
            ]
            if not rows:
                continue
            if self.book is not None and self.book.ask(BudgetLedger.closed):
                return
            yield pa.table({"block": [number], "rows": [json.dumps(rows)]})


@contextmanager
def _unless_deadly(book: RemoteLedger, what: str, *, most: int, message: str) -> Iterator[None]:
    """Count a task's starts while it runs; raise a StateError once more than `most` workers died at it."""
    begun = book.ask(BudgetLedger.begin, what)
    try:
        if begun > most:
            raise StateError(message)
        yield
    finally:
        book.tell(BudgetLedger.end, what)


class Worker:
    """Worker that answers blocks of rows with its own classifier.

    Parameters
    ----------
    opening : callable
        Returns a classifier that keeps the `limits` it is given.
    limits : Limits
        Its calls in flight; rates and budgets are those of all workers.
    workers : int
        Their number.
    cache : str or None
        URL or file of finished predictions.
    book : RemoteLedger
        Keeps the rates and budgets of all workers.
    """

    def __init__(
        self,
        opening: Callable[..., Predictor],
        limits: Limits,
        workers: int,
        cache: str | None,
        book: RemoteLedger,
    ) -> None:
        self._book = book
        self._failures = 0
        self._stop = Stop()
        self._broken: Exception | None = None
        try:
            # Every live worker may be opening at the same moment: their starts are no crashes.
            with _unless_deadly(book, "opening", most=workers + _DEATHS, message=_DIED_OPENING):
                self._open(opening, limits, workers, cache)
        except Exception as error:  # noqa: BLE001 (told with the first block: Ray would try it again and again)
            self._broken = error
        threading.Thread(target=self._listen, daemon=True).start()

    def _open(
        self, opening: Callable[..., Predictor], limits: Limits, workers: int, cache: str | None
    ) -> None:
        self._predictor = opening(limits=limits).with_limits(limits)
        for number, gate in enumerate(self._predictor.gates):
            gate.pace(lambda name, rate, own=number: self._shared_pace(f"{own} {name}", rate, workers))  # type: ignore[misc]
        self._cache = None if cache is None else PredictionCache(cache, max_bytes=MAX_BYTES)
        if self._cache is not None:
            self._predictor.use_journal(self._cache)

    def _shared_pace(self, name: str, per_minute: float, workers: int) -> Leased:
        return Leased(
            lambda used, wanted: self._book.tell(BudgetLedger.take, name, per_minute, used, wanted),
            per_minute=per_minute,
            workers=workers,
        )

    def _listen(self) -> None:
        """Stop the current block once the run is stopped, as a block may take long."""
        with suppress(Exception):  # the ledger's process has ended, and with it the run
            while not (reason := self._book.ask(BudgetLedger.stopped)):
                time.sleep(_LOOK_SECONDS)
            self._stop.request(reason)

    def __call__(self, batch: Any) -> Any:  # noqa: ANN401 (an Arrow table, whose types are not known here)
        """Return the answered blocks; errors are stored in them, as Ray would retry after an exception."""
        import pyarrow as pa  # noqa: PLC0415 (optional)

        blocks = [
            self.answer(number.as_py(), json.loads(rows.as_py()))
            for number, rows in zip(batch["block"], batch["rows"], strict=True)
        ]
        columns = map(list, zip(*blocks, strict=True))
        return pa.table(dict(zip(AnsweredBlock._fields, columns, strict=True)))

    def answer(self, number: int, rows: Sequence[Sequence[Any]]) -> AnsweredBlock:
        """Answer as many rows of a block as the budgets allow.

        A row is a sequence of place, text, answer, context, source and identifier.
        """
        lines: list[bytes] = []
        stopped = ""
        if self._broken is not None:
            return AnsweredBlock.fault(number, b"", self._broken)
        first = rows[0][0]
        last = rows[-1][0]
        died = f"{_DEATHS} workers died while they answered the rows {first} to {last} (counted from 0): {_SEE_LOG}"
        try:
            with _unless_deadly(self._book, f"block {number}", most=_DEATHS, message=died):
                while len(lines) < len(rows) and not stopped:
                    loan = self._book.ask(BudgetLedger.lend, len(rows) - len(lines))
                    lent = rows[len(lines) : len(lines) + loan.rows]
                    stopped = loan.refused or self._answer(lent, lines)
                if self._cache is not None:
                    self._cache.flush()  # Ray ends workers without notice
        except Exception as error:  # noqa: BLE001 (Ray would ask for the rows again)
            return AnsweredBlock.fault(number, b"".join(lines), error)
        return AnsweredBlock(number, b"".join(lines), stopped)

    def _answer(self, rows: Sequence[Sequence[Any]], lines: list[bytes]) -> str:
        """Answer rows lent by the ledger; return the reason for an early end, or an empty text."""
        examples = [
            Example(input=text, answer=answer, context=context, source=source, row_id=row_id)
            for _, text, answer, context, source, row_id in rows
        ]

        def deliver(place: int, prediction: Prediction) -> None:
            lines.append(row_line(rows[place][0], examples[place], prediction))
            self._failures = self._failures + 1 if prediction.outcome is Outcome.ERROR else 0

        before = self._spent()
        queries = [query_about(self._predictor, row) for row in examples]
        try:
            stopped = run_sync(self._predictor.feed(queries, deliver, stop=self._stop))
        finally:
            self._book.tell(BudgetLedger.pay, len(rows), self._spent().since(before))
        if self._failures >= max(_FAILURES_IN_A_ROW, self._predictor.meter.concurrency):
            raise ProviderError(  # counted across blocks, however small they are
                f"The last {self._failures} rows of a worker all failed, so the others were not asked. The last "
                f"one: {json.loads(lines[-1])['reason']}",
                provider=self._predictor.name,
            )
        return stopped

    def _spent(self) -> Spending:
        gate = self._predictor.meter
        return Spending(gate.rows, gate.requests, gate.tokens, gate.cost, gate.unpriced, gate.uncounted)


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
            if type(value) is not int or value < 1:
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


@contextmanager
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
        server = (host.strip("[]"), int(port))
        socket.create_connection(server, timeout=_REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"Expected a Ray cluster at {address}, found nobody there ({error}): check the address with ray status."
        ) from error


@contextmanager
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

    here = metadata.version("calibrant")
    there = ray.remote(version)
    asked = [there.options(num_cpus=0, **_on(node["NodeID"])).remote() for node in machines]
    for node, reference in zip(machines, asked, strict=True):
        found = ray.get(reference)
        if found != here:
            raise ConfigurationError(
                f"Expected calibrant {here} on every machine of the Ray cluster, got {found} on "
                f"{node['NodeManagerAddress']}: install the same version there."
            )


def _on(node: str) -> dict[str, Any]:
    """Return the options of a task or actor that runs on one machine."""
    return {"label_selector": {"ray.io/node-id": node}}


@dataclass(frozen=True)
class RemoteLedger:
    """Handle on a `BudgetLedger` in a process of its own; all copies share that ledger.

    Attributes
    ----------
    actor : object
        Ray's handle of it.
    """

    actor: Any

    def ask(
        self, method: Callable[Concatenate[BudgetLedger, _P], _T], *args: _P.args, **options: _P.kwargs
    ) -> _T:
        """Call a method of the ledger, and wait for its result."""
        ray = require_ray()
        try:
            return ray.get(self._call(method, *args, **options))  # type: ignore[no-any-return]
        except ray.exceptions.RayError as error:
            raise _cannot_go_on(error) from error

    def tell(
        self, method: Callable[Concatenate[BudgetLedger, _P], _T], *args: _P.args, **options: _P.kwargs
    ) -> Future[_T]:
        """Call a method of the ledger, and return the future of its result; Ray keeps the order of calls."""
        return self._call(method, *args, **options).future()  # type: ignore[no-any-return]

    def _call(self, method: Callable[..., object], *args: object, **options: object) -> Any:  # noqa: ANN401
        return getattr(self.actor, method.__name__).remote(*args, **options)


@contextmanager
def opened_ledger(limits: Limits, *, workers: int) -> Iterator[RemoteLedger]:
    """Start the ledger's process on this machine; end it with the context."""
    ray = require_ray()
    here = _on(ray.get_runtime_context().get_node_id())
    actor = ray.remote(BudgetLedger).options(num_cpus=0, **here).remote(limits, workers)
    try:
        yield RemoteLedger(actor)
    finally:
        with suppress(ray.exceptions.RayError):
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


@contextmanager
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
