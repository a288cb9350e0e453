"""Record of a provider's batch job: the source, data and format that its labels are written from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from calibrant.cli._commands import PromptedOptions
from calibrant.cli._decided_labels import DecidedLabels
from calibrant.cli._prompted import source_of
from calibrant.core._errors import ConfigurationError
from calibrant.core._files import read_record, write_record
from calibrant.evaluation._label import unlabelled

NOTE: Final = "labels.json"
_KIND: Final = "labels of a batch job"
_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class LabelJob:
    """Source, data and output format of a batch job's labels.

    Attributes
    ----------
    source : str
        Bundle, task file or directory of a run, whose thresholds decide.
    data : str
        File of the rows.
    text : str
        Its column of texts.
    limit : int or None
        Only so many rows.
    format : str or None
        csv, jsonl or parquet.
    distribution : bool
        True to write the probabilities of all labels, too.
    accept_suggested : bool
        True to accept by a suggested threshold.
    """

    source: str
    data: str
    text: str
    limit: int | None = None
    format: str | None = None
    distribution: bool = False
    accept_suggested: bool = False

    def save(self, directory: Path) -> None:
        """Write the record to the job's directory.

        Raises
        ------
        StateError
            It cannot be written.
        """
        write_record(directory / NOTE, asdict(self), kind=_KIND, version=_VERSION)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the record in a job's directory.

        Raises
        ------
        StateError
            It is damaged.
        """
        record = read_record(directory / NOTE, kind=_KIND, version=_VERSION, make="submit the job")
        return cls(**{name: value for name, value in record.items() if name not in {"kind", "version"}})

    def write(self, directory: Path) -> DecidedLabels:
        """Write the labels of the collected job.

        Raises
        ------
        ConfigurationError, DataError, StateError
            The source or the data cannot be read again.
        """
        source = source_of(Path(self.source), PromptedOptions())
        rows = unlabelled(Path(self.data), text=self.text, limit=self.limit, csv=source.task.columns.csv)
        for _ in rows:  # finds the columns
            pass
        labels = DecidedLabels.of(
            Path(self.source),
            source.tuned,
            out=directory,
            rows=rows,
            file_format=self.format,
            distribution=self.distribution,
            accept_suggested=self.accept_suggested,
        )
        labels.file.prepare()
        labels.file.write()
        return labels


def refuse_limits(names: list[str]) -> None:
    """Raise ConfigurationError if limits of single calls are named for a batch job."""
    if names:
        raise ConfigurationError(
            f"Expected no --{names[0].replace('_', '-')} with --engine batch, whose pace and price are the provider's: "
            "leave it out."
        )
