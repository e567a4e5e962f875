"""All workers: what discovery's changes do, who offers a model, and what is said when nobody does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from discovery.instance import Insert, Readiness
from fabric.errors import Unavailable, UnknownModel
from fabric.transport import WireName
from router.table import Dial, Drop
from router.workers import State
from tests.unit.router.fleet import PLAN, Fleet, NamedLink, facts, instance

LOST = "every wire to it was lost"


def test_a_new_node_is_dialled_once_and_repeats_change_nothing_that_was_learned() -> None:
    fleet = Fleet("a")
    worker = fleet.worker("a")
    kind = fleet.core.table.work.kind("plan", 32)
    worker.speed.learn(kind, 3.0, fleet.now)
    for _ in range(1000):
        assert fleet.core.table.changed((Insert(instance("a")),)) == ()
    assert fleet.worker("a") is worker
    assert worker.state is State.READY
    assert worker.speed.known(kind)


def test_another_life_of_a_node_is_another_worker() -> None:
    fleet = Fleet("a")
    (dial,) = fleet.core.table.changed((Insert(instance("a", epoch=2)),))
    assert isinstance(dial, Dial)
    assert dial.worker is not fleet.worker("a")
    assert len(fleet.core.table.workers) == 2


def test_a_lost_link_is_dropped_and_dialled_again_and_reported_by_many_counts_once() -> None:
    fleet = Fleet("a")
    worker = fleet.worker("a")
    link = worker.link
    assert link is not None
    assert fleet.core.table.link_lost(worker, link) == (Drop(link, LOST), Dial(worker))
    assert fleet.core.table.link_lost(worker, link) == ()


def test_a_node_that_was_removed_goes_when_its_link_does() -> None:
    fleet = Fleet("a", "b")
    worker = fleet.worker("a")
    link = worker.link
    assert link is not None
    assert fleet.remove("a") == ()
    assert fleet.remove("a") == (), "told twice"
    assert fleet.core.table.link_lost(worker, link) == (Drop(link, LOST),)
    assert [worker.name for worker in fleet.core.table.workers] == ["b"]


def test_a_node_that_was_removed_before_its_link_was_open_is_forgotten_and_a_late_link_dropped() -> None:
    fleet = Fleet()
    (dial,) = fleet.core.table.changed((Insert(instance("a")),))
    assert isinstance(dial, Dial)
    assert fleet.remove("a") == ()
    assert fleet.core.table.workers == ()
    link = NamedLink("a")
    assert fleet.core.table.link_up(dial.worker, link) == (Drop(link, "nobody wants a link to it any more"),)


def test_a_node_that_comes_back_into_the_list_is_ready_with_its_link() -> None:
    fleet = Fleet("a")
    fleet.remove("a")
    assert fleet.worker("a").state is State.UNLISTED
    assert fleet.core.table.changed((Insert(instance("a")),)) == ()
    assert fleet.worker("a").state is State.READY


def test_an_unknown_model_names_close_ones() -> None:
    fleet = Fleet()
    names = ("route_plan", "route_plan_gpu", "etr", "etr-mini")
    fleet.add(instance("a", *(replace(PLAN, name=name) for name in names)))
    with pytest.raises(
        UnknownModel, match="no node offers a model 'route_plam'; did you mean route_plan, route_plan_gpu"
    ):
        fleet.core.offer("route_plam")
    with pytest.raises(UnknownModel, match=r"a model 'zzz'; there is etr, etr-mini, route_plan, route_plan_gpu$"):
        fleet.core.offer("zzz")
    assert fleet.core.table.models() == tuple(sorted(names))
    fleet.add(instance("b", *(replace(PLAN, name=name) for name in "nmo")))
    with pytest.raises(UnknownModel, match=r"there is etr, etr-mini, m, n, o and 2 more$"):
        fleet.core.offer("zzz")


def test_a_model_that_was_refused_says_why() -> None:
    fleet = Fleet()
    fleet.add(instance("a", facts("big", refused="it needs 20 GiB and the card has 8")))
    with pytest.raises(UnknownModel, match="a refused it: it needs 20 GiB"):
        fleet.core.offer("big")
    assert fleet.core.table.models() == ()


def test_models_that_are_reached_are_those_of_living_links() -> None:
    fleet = Fleet("a", "b")
    names = fleet.core.table.models()
    assert fleet.core.table.models_reached() == names != ()
    fleet.worker("a").silent = True
    assert fleet.core.table.models_reached() == names, "b has them too"
    link = fleet.worker("b").link
    assert link is not None
    fleet.core.table.link_lost(fleet.worker("b"), link)
    assert fleet.core.table.models_reached() == ()
    assert fleet.core.table.models() == names
    fleet.worker("a").silent = False
    assert fleet.core.table.models_reached() == names


def test_nobody_at_all_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="no node is registered"):
        Fleet().core.offer("plan")


def test_an_address_that_an_operator_wrote_down_may_be_asked_for_anything() -> None:
    fleet = Fleet()
    fleet.add(replace(instance("10.0.0.1:80", epoch=0), models=()))
    offer = fleet.core.offer("whatever")
    assert offer.facts is None
    assert not offer.idempotent, "nobody said it is"


def test_a_model_whose_last_node_is_gone_is_waited_for_and_keeps_what_was_known_of_it() -> None:
    fleet = Fleet("a")
    before = fleet.core.offer("plan")
    fleet.lose("a")
    fleet.remove("a")
    assert fleet.core.table.workers == ()
    after = fleet.core.offer("plan")
    assert (after.everyone, after.facts, after.idempotent) == ((), before.facts, True)
    with pytest.raises(Unavailable, match="no node is registered"):
        fleet.core.offer("ledger")  # nobody asked for it before


def test_a_node_of_this_host_is_local_while_its_local_wire_carries() -> None:
    fleet = Fleet("a", local=("a",))
    worker = fleet.worker("a")
    link = worker.link
    assert isinstance(link, NamedLink)
    assert fleet.core.offer("plan").local == (worker,)
    for wire, local in ((WireName.RPC, ()), (WireName.LOCAL, (worker,))):
        link.uses = wire
        fleet.core.table.wire_changed(worker)
        assert fleet.core.offer("plan").local == local


def test_a_node_that_starts_is_dialled_when_it_has_told_all_its_addresses() -> None:
    fleet = Fleet()
    table, starting = fleet.core.table, replace(instance("a"), readiness=Readiness.STARTING, rpc="")
    assert table.changed((Insert(starting),)) == ()
    (dial,) = table.changed((Insert(instance("a")),))
    assert isinstance(dial, Dial)
    assert dial.worker.instance == instance("a")
    assert table.changed((Insert(instance("a")),)) == ()
