"""Compares the tables of two runs of scripts/bench, cell by cell.

Usage: compare_runs.py BEFORE AFTER [PERCENT]

Prints the cells that differ by more than PERCENT (10 by default). On a virtual machine, times of
two runs differ by more than that without any change to the program; instructions do not.
"""

import re
import sys
from pathlib import Path


def cells(path):
    """Maps the heading of a table, a row and a column to the first number in the cell.

    Columns of one table can have the same heading, so their number is part of the place.
    """
    found, headings = {}, []
    for line in path.read_text().splitlines():
        if not line.startswith("|"):
            headings = []
            continue
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if not headings:
            headings = row
        elif not set(line) <= set("|-: "):
            for column, (heading, cell) in enumerate(zip(headings, row)):
                number = re.match(r"-?[\d,]*\.?\d+", cell)
                if column > 0 and number:
                    place = headings[0], row[0], f"column {column} ({heading})"
                    found[place] = float(number[0].replace(",", ""))
    return found


def main():
    before, after = Path(sys.argv[1]), Path(sys.argv[2])
    percent = float(sys.argv[3]) if len(sys.argv) > 3 else 10.0
    differences = 0
    for path in sorted(after.glob("*.md")):
        old = before / path.name
        if not old.exists():
            continue
        known = cells(old)
        for place, number in cells(path).items():
            earlier = known.get(place)
            if not earlier:
                continue
            change = 100 * (number / earlier - 1)
            if abs(change) > percent:
                differences += 1
                print(f"{path.stem}: {', '.join(place)}: {earlier:g} -> {number:g} ({change:+.0f} %)")
    print(f"{differences} cells differ by more than {percent:g} % from {before}")


if __name__ == "__main__":
    main()
