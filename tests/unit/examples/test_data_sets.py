"""Every set in the data folder is the one its source line names, and its loader reads all of it."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from examples.dispatch.data import dumitrescu, grubhub, lilim
from examples.dispatch.data.sources import SOURCES, Source, set_digest, set_files

IN_FOLDER = [source for source in SOURCES if source.folder]


@pytest.mark.parametrize("source", IN_FOLDER, ids=[source.name for source in IN_FOLDER])
def test_a_set_is_what_its_source_line_says(data: Path, source: Source) -> None:
    assert len(set_files(source, data)) == source.files
    assert set_digest(source, data) == source.sha256
    if source.licence_file:
        text = (data / "LICENSES" / source.licence_file).read_text()
        assert ("BSD" if source.licence.startswith("BSD") else "MIT") in text or "Redistribution" in text


def test_every_source_has_origin_licence_and_loader() -> None:
    package = Path(grubhub.__file__).parent
    for source in SOURCES:
        assert source.origin
        assert source.licence
        assert (package / source.loader).is_file()
        assert bool(source.folder) == bool(re.fullmatch("[0-9a-f]{64}", source.sha256))


def test_a_changed_byte_changes_the_digest(tmp_path: Path) -> None:
    source = IN_FOLDER[0]
    folder = tmp_path / source.folder
    folder.mkdir()
    (folder / "a.pdt").write_bytes(b"1")
    first = set_digest(source, tmp_path)
    (folder / "a.pdt").write_bytes(b"2")
    second = set_digest(source, tmp_path)
    (folder / "a.pdt").rename(folder / "b.pdt")
    assert len({first, second, set_digest(source, tmp_path)}) == 3


def test_grubhub_optima_cost_what_they_say(data: Path) -> None:
    folder = data / "tsppd_grubhub"
    optima = {optimum.name: optimum for optimum in grubhub.load_optima(folder / "optimal.csv")}
    problems = grubhub.load_problems(folder)
    assert len(problems) == len(optima) == 98
    for problem in problems:
        optimum = optima[problem.name]
        assert problem.orders == optimum.orders
        route = (0, *optimum.stops)
        assert sum(int(problem.travel[a, b]) for a, b in itertools.pairwise(route)) == optimum.cost


def test_dumitrescu_best_tours_cost_what_they_say(data: Path) -> None:
    paths = sorted((data / "pdtsp_dumitrescu").glob("*.txt"))
    assert len(paths) == 21
    for path in paths:
        tour, best = dumitrescu.load_tour(path), dumitrescu.load_best_tour(path.with_suffix(".sol"))
        code = {number - 1: k for k, number in enumerate(tour.ids[:-1])}
        stops = [code[number] for number in best.route]
        assert best.name == tour.name
        assert int(tour.travel[stops[:-1], stops[1:]].sum()) == best.cost
        assert sorted(stops[:-1]) == list(range(2 * tour.orders + 1))
        assert all(stops.index(2 * k + 1) < stops.index(2 * k + 2) for k in range(tour.orders))
        assert np.array_equal(tour.travel[0], tour.travel[-1])


def test_lilim_instances_routes_and_records_fit_together(data: Path) -> None:
    folder = data / "pdptw_lilim"
    problems = {
        problem.name: problem
        for size in ("li_lim_100", "li_lim_200")
        for problem in map(lilim.load_problem, sorted((folder / size).glob("*.txt")))
    }
    assert len(problems) == 107
    records = {record.name: record for record in lilim.load_best_known(folder / "BKS.json")}
    assert set(problems) <= set(records)
    routes = lilim.load_routes(folder / "routes_100_vroom.json")
    for route in routes:
        sites = (0, *route.sites, 0)
        problem = problems[route.instance]
        total = sum(problem.travel_milli(a, b) for a, b in itertools.pairwise(sites))
        assert total == route.distance_milli
    for name in {route.instance for route in routes}:
        served = sorted(site for route in routes if route.instance == name for site in route.sites)
        assert served == list(range(1, len(problems[name].sites)))


BROKEN = [
    (grubhub.load_problem, ""),
    (grubhub.load_problem, "nothing\nof the kind\n"),
    (grubhub.load_problem, "GRUBHUB: x\nDIMENSION: 4\n0 1 2 3\n" * 4),
    (grubhub.load_problem, "GRUBHUB: x\nDIMENSION: 3\n0 1 2\n0 0 x\n0 1 0\n"),
    (grubhub.load_problem, "GRUBHUB: x\nDIMENSION: 3\n0 1 2\n0 0 -1\n0 1 0\n"),
    (grubhub.load_problem, "GRUBHUB: x\nDIMENSION: 3\n0 1 2\n0 0\n0 1 0\n"),
    (grubhub.load_optima, "instance,pairs\na,1\n"),
    (grubhub.load_optima, "instance,pairs,optimal_cost,optimal_sequence\na,1,5,+1 -2\n"),
    (grubhub.load_optima, "instance,pairs,optimal_cost,optimal_sequence\na,1.5,5,+1 -1\n"),
    (dumitrescu.load_tour, "3\n1 5 5\n2 1 1 0 3\n-999\n"),
    (dumitrescu.load_tour, "3\n1 5 5\n2 1 1 0 4\n3 1 1 1 2\n-999\n"),
    (dumitrescu.load_best_tour, "{"),
    (dumitrescu.load_best_tour, '{"instance": "a", "cost": 3}'),
    (lilim.load_problem, "25 200 1\n0 40 50 0 0 1236 0 0 0\n1 1 1 5 0 9 0 0 2\n"),
    (lilim.load_problem, "25 200\n0 40 50 0 0 1236 0 0 0\n"),
    (lilim.load_best_known, "[1]"),
    (lilim.load_best_known, '{"a": {"best_known_cost": 3}}'),
    (lilim.load_routes, '{"a": {"routes": [{"stops": [1]}]}}'),
]


@pytest.mark.parametrize(("load", "text"), BROKEN)
def test_a_broken_file_is_one_sentence_with_its_name(load: object, text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(ValueError, match="broken") as caught:
        load(path)  # type: ignore[operator]
    assert "\n" not in str(caught.value)
