"""``calibrant review``: a local page on which one person decides on rows."""

from __future__ import annotations

import secrets
import shlex
import webbrowser
from collections.abc import Iterator

from calibrant import serving
from calibrant.cli._certify import metric_of
from calibrant.cli._commands import Review as Options
from calibrant.cli._tables import print_output, say
from calibrant.evaluation._asked import CERTIFICATE, DECIDED
from calibrant.serving._review import REVIEWED, Review


def review(options: Options) -> None:
    """Serve the page until Ctrl-C, then write the files and print what was decided."""
    create_app = serving.create_review_app  # first, as it says which extra is missing
    from calibrant.serving._server import serve_app

    token = secrets.token_urlsafe(24)
    with Review.opened(options.source, options.out) as found:
        if options.certify:
            metric, label = metric_of(options)
            found.certify(
                target=options.target, delta=options.delta, metric=metric, label=label, budget=options.budget
            )

        def announce(address: str) -> None:
            page = f"{address}/?token={token}"
            line = f"{found.rows.name}: {len(found.rows):,} rows at {page}; the address opens once. Ctrl-C ends it."
            print_output({}, [line], as_json=False)
            if options.show and not webbrowser.open(page):
                say("No browser was found: open that address in one.")

        serve_app(create_app(found, token=token), port=options.port, on_ready=announce)
        found.write()
        print_output({}, _lines(found), as_json=False)


def _lines(found: Review) -> Iterator[str]:
    """Yield the number of answers, the promise, and the commands that take the answers on."""
    yield f"{found.n_answered:,} rows have an answer in {found.path}."
    if (promise := found.promise()) is not None:
        yield f"Certified: {promise['sentence']}" if promise["certified"] else promise["sentence"]
        yield f"Why not more: {promise['reason']}"
        if promise["used"]:
            yield f"Files in {found.out}: {CERTIFICATE}, {DECIDED}; run the same command again to go on."
    path = found.out / REVIEWED
    yield f"{path} has every row with its final label. To learn from the answers, make a task of it:"
    words = ["calibrant", "init", str(path), "--text-column", "input", "--label-column", "answer"]
    yield f"  {shlex.join(words)}"
