"""What a registry's answers change, and which ones are not believed yet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.catalogue import Answered, Catalogue, Failed, Guards
from discovery.instance import Insert, Instance, Readiness, Remove
from tests.unit.discovery.sample import instance

GUARDS = Guards(empty_grace_s=5.0, confirm_s=1.0)


def answered(*names: str, gone: tuple[tuple[str, int], ...] = ()) -> Answered:
    return Answered(tuple(instance(name) for name in names), frozenset(gone))


def full(*names: str) -> Catalogue:
    catalogue = Catalogue(GUARDS)
    catalogue.handle(answered(*names), 0.0)
    return catalogue


def ids(catalogue: Catalogue) -> str:
    return "".join(sorted(known.node_id for known in catalogue.instances))


def test_first_answer_inserts_all() -> None:
    changes = Catalogue(GUARDS).handle(answered("a", "b"), 0.0)
    assert changes == (Insert(instance("a")), Insert(instance("b")))


def test_identical_answer_changes_nothing() -> None:
    assert full("a", "b").handle(answered("b", "a"), 1.0) == ()


def test_changed_facts_insert_again() -> None:
    drained = instance("a", readiness=Readiness.DRAINING)
    assert full("a").handle(Answered((drained,)), 1.0) == (Insert(drained),)


def test_new_epoch_removes_then_inserts() -> None:
    catalogue = full("a", "b")
    changes = catalogue.handle(Answered((instance("a", 2), instance("b"))), 1.0)
    assert changes == (Remove("a", 1), Insert(instance("a", 2)))


def test_two_lives_listed_the_newer_counts() -> None:
    catalogue = Catalogue(GUARDS)
    assert catalogue.handle(Answered((instance("a", 7), instance("a", 3))), 0.0) == (Insert(instance("a", 7)),)


def test_one_of_two_is_removed_at_once() -> None:
    assert full("a", "b").handle(answered("a"), 1.0) == (Remove("b", 1),)


def test_what_is_missing_beside_garbled_entries_is_asked_for_again() -> None:
    catalogue = full("a", "b", "c")
    garbled = Answered((instance("a"), instance("b")), doubtful=True)
    assert catalogue.handle(garbled, 1.0) == ()
    assert catalogue.look_again_s(1.0) == GUARDS.confirm_s
    assert catalogue.handle(answered("a", "b", "c"), 2.0) == ()
    assert catalogue.look_again_s(2.0) is None
    assert catalogue.handle(garbled, 3.0) == ()
    assert catalogue.handle(answered("a", "b"), 4.0) == (Remove("c", 1),), "what stays garbled is nobody's"
    assert full("a", "b", "c").handle(answered("a", "b"), 1.0) == (Remove("c", 1),)


def test_a_first_answer_with_garbled_entries_is_asked_for_again_soon() -> None:
    catalogue = Catalogue(GUARDS)
    assert catalogue.handle(Answered((instance("a"),), doubtful=True), 0.0) == (Insert(instance("a")),)
    assert catalogue.look_again_s(0.25) == 0.75


def test_silence_is_believed_when_it_lasts() -> None:
    """A registry that stalled hears nobody for a while: then half of a fleet is silent, and alive."""
    catalogue = full("a", "b")
    silent = Answered((instance("a"),), silent=frozenset({("b", 1), ("stranger", 1), ("a", 9)}))
    assert catalogue.handle(silent, 1.0) == ()
    assert catalogue.look_again_s(1.0) == GUARDS.silent_grace_s
    assert catalogue.handle(answered("a", "b"), 3.0) == ()
    assert catalogue.look_again_s(3.0) is None
    assert catalogue.handle(silent, 4.0) == ()
    assert catalogue.handle(silent, 4.0 + GUARDS.silent_grace_s - 0.1) == ()
    assert catalogue.handle(silent, 4.0 + GUARDS.silent_grace_s) == (Remove("b", 1),)
    assert catalogue.look_again_s(9.0) is None


def test_a_life_that_is_over_is_not_held_for_its_silence() -> None:
    catalogue = full("a", "b")
    assert catalogue.handle(Answered((instance("a"),), silent=frozenset({("b", 7)})), 1.0) == (Remove("b", 1),)
    silent = Answered((instance("a", 2),), silent=frozenset({("a", 1)}))
    assert catalogue.handle(silent, 2.0) == (Remove("a", 1), Insert(instance("a", 2)))


def test_failure_keeps_all_without_limit() -> None:
    catalogue = full("a")
    assert catalogue.handle(Failed("gone"), 1e6) == ()
    assert ids(catalogue) == "a"
    assert catalogue.age_s(1e6) == 1e6
    assert catalogue.statistics().failures == 1


def test_empty_answer_waits_for_its_grace() -> None:
    catalogue = full("a", "b", "c")
    assert catalogue.handle(answered(), 10.0) == ()
    assert catalogue.handle(answered(), 14.9) == ()
    assert catalogue.handle(answered(), 15.0) == (Remove("a", 1), Remove("b", 1), Remove("c", 1))
    assert catalogue.statistics().empty_refused == 2


def test_grace_starts_again_after_a_good_answer() -> None:
    catalogue = full("a")
    catalogue.handle(answered(), 10.0)
    catalogue.handle(answered("a"), 12.0)
    assert catalogue.handle(answered(), 15.5) == ()


def test_failures_do_not_use_up_the_grace_of_a_good_list() -> None:
    catalogue = full("a")
    catalogue.handle(Failed("gone"), 10.0)
    assert catalogue.handle(answered(), 20.0) == ()


def test_large_shrink_needs_a_second_read() -> None:
    catalogue = full(*"abcd")
    assert catalogue.handle(answered("a"), 1.0) == ()
    assert catalogue.handle(answered("a"), 1.5) == (), "a second read at once is the same read"
    assert catalogue.handle(answered("a"), 2.0) == (Remove("b", 1), Remove("c", 1), Remove("d", 1))
    assert catalogue.statistics().shrinks_refused == 2


def test_shrink_removes_only_what_both_reads_lack() -> None:
    catalogue = full(*"abcdef")
    catalogue.handle(answered("a"), 1.0)
    assert catalogue.handle(answered("b"), 3.0) == tuple(Remove(name, 1) for name in "cdef")
    assert ids(catalogue) == "ab"
    assert catalogue.handle(answered("b"), 4.0) == (Remove("a", 1),)


def test_shrink_that_heals_is_forgotten() -> None:
    catalogue = full(*"abcd")
    catalogue.handle(answered("a"), 1.0)
    assert catalogue.handle(answered(*"abcd"), 2.0) == ()
    assert catalogue.handle(answered("a"), 9.0) == (), "the doubt of long ago is no first read"


def test_known_deaths_need_no_grace() -> None:
    assert full("a").handle(answered(gone=(("a", 1),)), 1.0) == (Remove("a", 1),)


def test_death_of_another_life_proves_nothing() -> None:
    assert full("a").handle(answered(gone=(("a", 9),)), 1.0) == ()


def test_age_is_infinite_before_the_first_answer() -> None:
    assert Catalogue(GUARDS).age_s(5.0) == float("inf")


@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.none(),
                st.lists(
                    st.tuples(st.sampled_from("abcde"), st.integers(1, 3)), unique_by=lambda key: key[0], max_size=5
                ),
            ),
            st.floats(0.0, 4.0),
        ),
        max_size=30,
    )
)
def test_changes_replayed_give_the_list(readings: list[tuple[list[tuple[str, int]] | None, float]]) -> None:
    """Whoever applies the changes in order holds what the catalogue holds; a removal always names what was there."""
    catalogue = Catalogue(GUARDS)
    mirror: dict[str, Instance] = {}
    now = 0.0
    for listed, wait_s in readings:
        now += wait_s
        event = Failed("gone") if listed is None else Answered(tuple(instance(*key) for key in listed))
        for change in catalogue.handle(event, now):
            if isinstance(change, Remove):
                assert mirror.pop(change.node_id).node_epoch == change.node_epoch
            else:
                before = mirror.get(change.instance.node_id)
                assert before is None or before.node_epoch == change.instance.node_epoch
                mirror[change.instance.node_id] = change.instance
        assert sorted(mirror.values(), key=lambda i: i.key) == sorted(catalogue.instances, key=lambda i: i.key)
        if listed:
            assert {key[0] for key in listed} <= set(mirror), "whoever is listed is known"


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_wiped_registry_that_fills_again_removes_nobody(count: int) -> None:
    names = "abcdefghij"[:count]
    catalogue = full(*names)
    assert catalogue.handle(answered(), 1.0) == ()
    for step, _ in enumerate(names, 1):
        changes = catalogue.handle(answered(*names[:step]), 1.0 + 0.9 * step / count)
        assert changes == () or 2 * step >= count
    assert ids(catalogue)[:1] == "a"
