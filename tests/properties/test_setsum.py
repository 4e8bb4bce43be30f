"""Setsums are an abelian group over multisets of byte strings."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.common.setsum import PRIMES, Setsum
from lancelsm.errors import Corrupt

items = st.lists(st.binary(max_size=3), max_size=8)


@given(items, st.randoms(use_true_random=False))
def test_the_sum_does_not_depend_on_order(left, random):
    shuffled = list(left)
    random.shuffle(shuffled)

    assert Setsum.of(shuffled) == Setsum.of(left)


@given(items, items)
def test_equal_sums_mean_equal_multisets(left, right):
    assert (Setsum.of(left) == Setsum.of(right)) == (Counter(left) == Counter(right))


@given(items, items)
def test_the_sum_of_parts_is_the_sum_of_the_whole(left, right):
    assert Setsum.of(left) + Setsum.of(right) == Setsum.of(left + right)


@given(items, items)
def test_what_was_added_can_be_subtracted(left, right):
    total = Setsum.of(left + right)

    assert total - Setsum.of(right) == Setsum.of(left)
    assert total + -Setsum.of(right) == Setsum.of(left)
    assert total - total == Setsum.ZERO == -Setsum.ZERO


@given(items, items, items)
def test_addition_commutes_and_associates(a, b, c):
    x, y, z = Setsum.of(a), Setsum.of(b), Setsum.of(c)

    assert x + y == y + x
    assert (x + y) + z == x + (y + z)
    assert Setsum.ZERO - (-x) == x
    assert bool(x - y) == (x != y)


@given(items)
def test_digest_and_hex_survive_decoding(left):
    setsum = -Setsum.of(left)

    assert Setsum.from_digest(setsum.digest()) == setsum
    assert Setsum.from_hex(setsum.hex()) == setsum


@given(st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4))
def test_a_digest_is_valid_exactly_if_every_column_is_below_its_prime(columns):
    digest = b"".join(column.to_bytes(4, "little") for column in columns)

    if all(column < prime for column, prime in zip(columns, PRIMES, strict=True)):
        assert Setsum.from_digest(digest).digest() == digest
    else:
        with pytest.raises(Corrupt):
            Setsum.from_digest(digest)


@given(items, st.binary(max_size=8), st.data())
def test_an_item_may_be_given_in_pieces(left, item, data):
    cut = data.draw(st.integers(0, len(item)))

    assert Setsum.of(left) + Setsum.of_item(item[:cut], item[cut:]) == Setsum.of([*left, item])
