"""Run directories: folders, manifests, locks, row records, resume and rescue. Decodes rows and JSON, nothing else."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.runs._directory import METRICS, PREDICTIONS, RunDirectory
    from calibrant.runs._folder import (
        MANIFEST,
        Manifest,
        differing_keys,
        locked_folder,
        make_folder,
        rescue_if_lost,
        write_json,
    )
    from calibrant.runs._journal import FileLogger, JsonlStore, PredictionJournal
    from calibrant.runs._origin import BATCH, RESULT, damaged_origin, read_origin, unfinished
    from calibrant.runs._output import PredictionsFile
    from calibrant.runs._records import RowCounter, StoredRow, row_line, row_record
    from calibrant.runs._row_file import RowFile, read_row
    from calibrant.runs._shards import Shards, blocks_of
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._directory": "METRICS PREDICTIONS RunDirectory",
            "._folder": "MANIFEST Manifest differing_keys locked_folder make_folder rescue_if_lost write_json",
            "._journal": "FileLogger JsonlStore PredictionJournal",
            "._origin": "BATCH RESULT damaged_origin read_origin unfinished",
            "._output": "PredictionsFile",
            "._records": "RowCounter StoredRow row_line row_record",
            "._row_file": "RowFile read_row",
            "._shards": "Shards blocks_of",
        },
    )

__all__ = [
    "BATCH",
    "MANIFEST",
    "METRICS",
    "PREDICTIONS",
    "RESULT",
    "FileLogger",
    "JsonlStore",
    "Manifest",
    "PredictionJournal",
    "PredictionsFile",
    "RowCounter",
    "RowFile",
    "RunDirectory",
    "Shards",
    "StoredRow",
    "blocks_of",
    "damaged_origin",
    "differing_keys",
    "locked_folder",
    "make_folder",
    "read_origin",
    "read_row",
    "rescue_if_lost",
    "row_line",
    "row_record",
    "unfinished",
    "write_json",
]
