"""The accuracy that is claimed: real rows where the data folder is at hand, simulated rounds everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from examples.dispatch.etr import evaluate, train
from examples.dispatch.etr.deliveries import HEADER, UnreadableRows, read_deliveries, split

if TYPE_CHECKING:
    from pathlib import Path

ROW = "20.5,11.9,Thu,3.15," + ",".join("0" * 27)


def write_rows(folder: Path, *lines: str) -> Path:
    (folder / "food_delivery_time").mkdir()
    (folder / "food_delivery_time" / "deliveries.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_the_small_network_on_the_real_test_rows(data_dir: Path) -> None:
    median, linear, mini = evaluate.real_table(split(read_deliveries(data_dir)))
    assert mini.mae_min <= 1.90
    assert mini.within_3_min >= 0.80
    assert linear.mae_min - mini.mae_min >= 1.0
    assert median.mae_min > linear.mae_min


def test_the_split_is_by_row_index(data_dir: Path) -> None:
    rows = read_deliveries(data_dir)
    parts = split(rows)
    assert len(rows.minutes) == 9011
    assert (len(parts.train.minutes), len(parts.validation.minutes), len(parts.test.minutes)) == (5406, 1802, 1803)
    assert parts.test.minutes[1] == rows.minutes[5]
    assert parts.validation.minutes[1] == rows.minutes[6]


def test_the_base_network_on_simulated_rounds() -> None:
    plan, linear, etr, floor = evaluate.simulated_table(pairs=1024)
    assert etr.mae_min < 0.75 * linear.mae_min < plan.mae_min
    # Nothing can beat the median over the noise by more than the luck of one sample; a lower figure would be a leak.
    assert etr.mae_min > 0.98 * floor.mae_min


def test_accuracy_is_computed_as_named() -> None:
    row = evaluate.Accuracy.of("x", np.array([1.0, 2.0, 10.0, 4.0]), np.array([1.0, 4.0, 4.0, 4.0]))
    assert (row.mae_min, row.within_3_min) == (2.0, 0.75)
    assert row.rmse_min == pytest.approx(np.sqrt(10.0))
    assert row.p90_min == pytest.approx(4.8)


def test_rows_become_tensors(tmp_path: Path) -> None:
    rows = read_deliveries(write_rows(tmp_path, ",".join(HEADER), ROW))
    assert rows.inputs.ids.tolist() == [[3, 3 * 48 + 23]]
    assert rows.inputs.dense[0, :3] == pytest.approx([11.9, 3.15, 0.0])
    assert rows.minutes == pytest.approx([20.5])


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ((), "other columns|Cannot read"),
        (("a,b,c", "1,2,3"), "other columns"),
        ((",".join(HEADER),), "other columns"),
        ((",".join(HEADER), ROW.replace("Thu", "Someday")), "not numbers and a weekday"),
        ((",".join(HEADER), ROW.replace("3.15", "far")), "not numbers and a weekday"),
        ((",".join(HEADER), ROW, "1,2"), "not numbers and a weekday"),
    ],
)
def test_a_file_in_another_form_is_refused(tmp_path: Path, lines: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UnreadableRows, match=sentence):
        read_deliveries(write_rows(tmp_path, *lines))


def test_the_commands_say_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(["--data", str(tmp_path)]) == 2
    assert "give the data folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        train.main(["mini"])
    assert "--data" in capsys.readouterr().err


def test_training_without_torch_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert train.main(["base", "--pairs", "1"]) == 2
    assert "overspill[train]" in capsys.readouterr().err
