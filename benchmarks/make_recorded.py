"""Write the numbers of recorded answers that the notebook reads: confidence and correctness, without any text.

python benchmarks/make_recorded.py --data ../shared/data/recorded
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

OUT = Path(__file__).parent.parent / "notebooks" / "recorded" / "news.csv"


def main() -> None:
    """Copy three columns of the answers to the unoptimised prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with ag_news.csv")
    with (parser.parse_args().data / "ag_news.csv").open(newline="", encoding="utf-8") as file:
        recorded = [row for row in csv.DictReader(file) if row["prompt"] == "baseline"]
    with OUT.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["index", "confidence", "correct"])
        rows.writerows([row["row"], row["probability"], int(row["correct"] == "true")] for row in recorded)
    print(f"{OUT}: {len(recorded):,} rows")


if __name__ == "__main__":
    main()
