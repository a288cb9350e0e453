"""Program for the extra `data`: it writes rows of a JSON Lines file as Parquet."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
parquet.write_table(pa.Table.from_pylist(rows), sys.argv[2])
