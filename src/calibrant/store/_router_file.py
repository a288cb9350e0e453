"""What routers learnt, in one JSON file that several processes may write."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calibrant.core import StateError, remove_leftovers, write_atomically
from calibrant.store._router_records import Change, as_record, as_text, changed, check_name, parse

__all__ = ["FileRouterState"]

_LOG = logging.getLogger("calibrant")

_KIND = "router state"
_VERSION = 1
_OWNER_ONLY = 0o600
_MAX_SET_ASIDE = 1000
_LONGEST_PAUSE = 0.01  # seconds between two attempts to lock


class FileRouterState:
    """A `calibrant.core.RouterState` in a JSON file; see `open_router_state`.

    The file is replaced as a whole, so whoever reads it finds the old one or the new one, and an update
    that returned survives a kill and a power cut. Writers take turns by a lock on the file ``NAME.lock``.
    What is damaged or refused is copied to ``NAME.corrupt-1`` and so on. Symbolic links are refused. Only the
    owner can open these files. Threads may share it, and so may the child of a fork.
    """

    def __init__(self, path: Path, *, scope: str, busy_timeout: float) -> None:
        self._path = path.expanduser().absolute()  # the program may change its folder
        self.location = str(self._path)
        self._scope = scope
        self._busy_timeout = busy_timeout
        self._tidied = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r}, scope={self._scope!r})"

    def read(self, strategy: str) -> dict[str, Any] | None:
        """Return a strategy's record; see `RouterState`."""
        try:
            records = self._scopes(self._content()).get(self._scope, {})
            return as_record(records[strategy]) if strategy in records else None
        except ValueError as error:
            raise StateError(self._damaged(error)) from error

    def update(self, strategy: str, change: Change) -> dict[str, Any]:
        """Replace a strategy's record; see `RouterState`."""
        check_name(strategy, what="a strategy", longest=64)
        with self._locked():
            content = self._content()
            scopes = self._usable(content)
            records = scopes.setdefault(self._scope, {})
            record = changed(
                lambda: as_record(records[strategy]) if strategy in records else None,
                change,
                set_aside=lambda reason: self._set_aside(content or b"", f"the record of {strategy}", reason),
            )
            records[strategy] = record
            self._write(scopes)
        return record

    def reset(self, strategy: str | None = None) -> list[str]:
        """Forget a strategy's record, or all of the scope; see `RouterState`."""
        if not os.path.lexists(self._path):
            return []
        with self._locked():
            scopes = self._usable(self._content())
            records = scopes.get(self._scope, {})
            there = sorted(records if strategy is None else {strategy} & set(records))
            for name in there:
                del records[name]
            self._write(scopes)
        return there

    def strategies(self) -> list[str]:
        """Return the strategies with a record; see `RouterState`."""
        try:
            return sorted(self._scopes(self._content()).get(self._scope, {}))
        except ValueError as error:
            raise StateError(self._damaged(error)) from error

    def scopes(self) -> list[str]:
        """Return all scopes with a record; see `RouterState`."""
        try:
            return sorted(scope for scope, records in self._scopes(self._content()).items() if records)
        except ValueError as error:
            raise StateError(self._damaged(error)) from error

    def close(self) -> None:
        """Do nothing: nothing stays open."""

    def _content(self) -> bytes | None:
        """Return the bytes of the file; None where there is none."""
        try:
            # Nobody can make us wait by a pipe of that name.
            with os.fdopen(self._open(self._path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._trouble("read", error) from error

    def _usable(self, content: bytes | None) -> dict[str, dict[str, Any]]:
        """Return the records by scope and strategy; a damaged file is set aside."""
        try:
            return self._scopes(content)
        except ValueError as error:
            self._set_aside(content or b"", "the file", str(error))
            return {}

    def _scopes(self, content: bytes | None) -> dict[str, dict[str, Any]]:
        """Return the records by scope and strategy.

        Raises
        ------
        ValueError
            The file is damaged.
        StateError
            It is sound, but not ours to write.
        """
        if content is None:
            return {}
        whole = as_record(parse(content))
        if whole.get("kind") != _KIND:
            raise StateError(
                f"{self.location}: expected a {_KIND}, got {whole.get('kind')!r:.80}: choose another file; this one "
                "was left as it is."
            )
        version = whole.get("version")
        if type(version) is not int or version < 1:
            raise ValueError(f"expected a version of at least 1, got {version!r:.80}")
        if version > _VERSION:
            raise StateError(
                f"{self.location}: expected version {_VERSION} of a {_KIND}, got {version}: install the newer "
                "calibrant that wrote it, or name another file; this one was left as it is."
            )
        return {scope: as_record(records) for scope, records in as_record(whole.get("scopes")).items()}

    def _write(self, scopes: dict[str, dict[str, Any]]) -> None:
        text = as_text({"kind": _KIND, "version": _VERSION, "scopes": scopes}, location=self.location)
        try:
            write_atomically(self._path, text + "\n", mode=_OWNER_ONLY)
        except OSError as error:
            raise self._trouble("written", error) from error

    def _set_aside(self, content: bytes, what: str, reason: str) -> None:
        """Keep a copy of the file, never over another one."""
        for number in range(1, _MAX_SET_ASIDE + 1):
            copy = self._path.with_name(f"{self._path.name}.corrupt-{number}")
            with contextlib.suppress(FileExistsError):
                self._copy(content, copy)
                break
        else:
            raise StateError(f"{self.location}: {_MAX_SET_ASIDE} damaged files were set aside: delete them.")
        _LOG.warning(
            "%s: %s cannot be used, was set aside as %s and begins anew: %s", self._path, what, copy, reason
        )

    def _copy(self, content: bytes, copy: Path) -> None:
        try:
            handle = self._open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            raise
        except OSError as error:
            copy.unlink(missing_ok=True)
            raise self._trouble("set aside", error) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other writers out."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = self._lock(self._path.with_name(f"{self._path.name}.lock"))
        except OSError as error:
            raise self._trouble("locked", error) from error
        try:
            if not self._tidied:
                self._tidied = True
                with contextlib.suppress(OSError):
                    remove_leftovers(self._path)
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing alone would not free it where a child inherited it
            os.close(handle)

    def _lock(self, path: Path) -> int:
        deadline = time.monotonic() + self._busy_timeout
        pause = 0.0005
        while True:
            handle = self._open(path, os.O_RDWR | os.O_CREAT)
            try:
                if _holds(handle, path):
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
            if time.monotonic() > deadline:
                raise TimeoutError(
                    errno.ETIMEDOUT, f"other processes held {path.name} for {self._busy_timeout:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _open(self, path: Path, flags: int) -> int:
        """Open a regular file, not what a symbolic link points to."""
        try:
            handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _OWNER_ONLY)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.EMLINK} and path.is_symlink():
                raise StateError(
                    f"{path}: expected a file, got a symbolic link, which is not followed: name the file it points "
                    "to, or remove the link."
                ) from error
            raise
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise StateError(f"{path}: expected a file, got something else: name another file.")
        return handle

    def _damaged(self, error: ValueError) -> str:
        return f"{self.location}: damaged ({error}): it is set aside with the next update, or delete it."

    def _trouble(self, what: str, error: OSError) -> StateError:
        return StateError(
            f"{self.location}: the router state cannot be {what} ({error.strerror or error}): make room, make its "
            "folder writable, end what locks it, or name another file."
        )


def _holds(handle: int, path: Path) -> bool:
    """Lock a file unless another process does; a file that was deleted meanwhile would keep nobody out."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except (BlockingIOError, FileNotFoundError):
        return False
