"""Run directories: folders, manifests, locks, row records, resume and rescue. Decodes rows and JSON, nothing else."""

from calibrant.runs._directory import METRICS, PREDICTIONS, RunDirectory
from calibrant.runs._folder import (
    MANIFEST,
    Manifest,
    differing_keys,
    hold_lock,
    locked_folder,
    make_folder,
    rescue_if_lost,
    unwritable,
    write_json,
)
from calibrant.runs._journal import FileLogger, JsonlStore, PredictionJournal
from calibrant.runs._output import PredictionsFile
from calibrant.runs._records import RowCounter, StoredRow, row_line, row_record
from calibrant.runs._row_file import RowFile, read_row
from calibrant.runs._shards import FinishedBlocks, Shards, blocks_of

__all__ = [
    "MANIFEST",
    "METRICS",
    "PREDICTIONS",
    "FileLogger",
    "FinishedBlocks",
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
    "differing_keys",
    "hold_lock",
    "locked_folder",
    "make_folder",
    "read_row",
    "rescue_if_lost",
    "row_line",
    "row_record",
    "unwritable",
    "write_json",
]
