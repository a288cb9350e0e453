"""A scripted server on loopback."""

from __future__ import annotations

import asyncio
import threading

from aiohttp import web


class LoopbackServer:
    """Serves in a thread, on an event loop of its own, until it is stopped; `root` is its address.

    Subclasses define their answers in `routed`, and call this constructor once they are ready to.
    """

    root: str

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(30)

    def routed(self) -> web.Application:
        """Return the application with its routes."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the server and cancel its calls."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        # A call whose client has gone ends at once.
        runner = web.AppRunner(
            self.routed(), access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
        self.root = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()
