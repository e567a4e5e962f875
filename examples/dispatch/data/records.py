"""Reading small text files line by line, with errors that name the file and the line.

Every loader goes through here, so a broken file is always one sentence and never a traceback of float(). Next: the
loaders.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def read_lines(path: Path) -> list[str]:
    """Return the lines that are not blank, without line ends of any system. Raises ValueError where there are none."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty, give a data file")
    return lines


def whole_numbers(line: str, path: Path, count: int | None = None) -> list[int]:
    """Return a line's integers. Raises ValueError where they are not integers, or not as many as wanted."""
    try:
        values = [int(word) for word in line.split()]
    except ValueError:
        raise ValueError(f"{path}: {line[:60]!r} must be integers") from None
    if count is not None and len(values) != count:
        raise ValueError(f"{path}: {line[:60]!r} must have {count} integers")
    return values


def read_table(path: Path, columns: Sequence[str], delimiter: str = ",") -> Iterator[Mapping[str, str]]:
    """Yield a delimited file's rows by column name. Raises ValueError where a column is missing or a row is short."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, delimiter=delimiter)
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path} has no column {', '.join(missing)}; it must have {', '.join(columns)}")
        for row in reader:
            if any(row[column] is None for column in columns):
                raise ValueError(f"{path}: line {reader.line_num} is short of columns")
            yield row


def number(row: Mapping[str, str], column: str, path: Path) -> float:
    """Return a field as a float. Raises ValueError that names file, column and text."""
    try:
        return float(row[column])
    except ValueError:
        raise ValueError(f"{path}: column {column} holds {row[column]!r}, which is no number") from None


def whole(row: Mapping[str, str], column: str, path: Path) -> int:
    """Return a field as an integer; '3.0' counts as 3. Raises ValueError that names file, column and text."""
    value = number(row, column, path)
    if not value.is_integer():
        raise ValueError(f"{path}: column {column} holds {row[column]!r}, which is no whole number")
    return int(value)
