"""Compare setsums with stored vectors, and refuse invalid digests.

The vectors follow from the definition: the four little-endian 32-bit columns of xxh3_128, added up by Python integers,
each modulo its prime. The items are those of the published vectors of wal3, whose hash is SHA3-256.
"""

import json
import pickle
from pathlib import Path

import pytest

from lancelsm.common.setsum import PRIMES, Setsum
from lancelsm.errors import Corrupt

VECTORS = json.loads((Path(__file__).parent / "setsum_vectors.json").read_text())


def _items(*hexes):
    return [bytes.fromhex(item) for item in hexes]


COMPUTED = {
    "0..999 decimal": lambda: Setsum.of(str(number).encode() for number in range(1000)),
    "1 MiB zeros": lambda: Setsum.of([bytes(1 << 20)]),
    "negated A": lambda: Setsum.ZERO - Setsum.of([b"A"]),
    "A,B minus C (placeholder)": lambda: Setsum.of([b"A", b"B"]) - Setsum.of_item(b"C"),
    "wal3 record pieces": lambda: Setsum.of_item(
        *_items("000000000000002a", "0006249bf601dd00", "68656c6c6f20776f726c64")
    ),
}


def test_the_primes_equal_those_of_the_vectors():
    assert list(PRIMES) == VECTORS["primes"]


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_the_sum_equals_the_stored_vector(vector):
    computed = COMPUTED.get(vector["name"])
    setsum = computed() if computed else Setsum.of(_items(*vector["items_hex"]))

    assert setsum.hex() == vector["hexdigest"]


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_the_digest_of_a_stored_vector_survives_decoding(vector):
    assert Setsum.from_hex(vector["hexdigest"]).digest().hex() == vector["hexdigest"]


def test_an_item_is_hashed_with_xxh3_128():
    published = bytes.fromhex("99aa06d3014798d86001c324468d497f")  # of no bytes, by the authors of xxHash

    assert Setsum.of_item() == Setsum.of([b""]) == Setsum.of_columns(memoryview(published).cast("I"))


def test_many_items_have_the_sum_of_single_items():
    items = [str(number).encode() for number in range(10_000)]

    one_by_one = Setsum.ZERO
    for item in items:
        one_by_one += Setsum.of_item(item)

    assert Setsum.of(items) == one_by_one


def test_a_setsum_is_immutable():
    setsum = Setsum.of([b"A"])

    with pytest.raises(AttributeError):
        setsum._digest = bytes(32)

    assert setsum == Setsum.of([b"A"])
    assert hash(setsum) == hash(Setsum.of([b"A"]))


def test_a_setsum_survives_pickling():
    assert pickle.loads(pickle.dumps(Setsum.of([b"A"]))) == Setsum.of([b"A"])


@pytest.mark.parametrize("column", range(4))
def test_a_column_at_its_prime_is_corrupt(column):
    columns = [0] * 4
    columns[column] = PRIMES[column]
    digest = b"".join(value.to_bytes(4, "little") for value in columns)

    with pytest.raises(Corrupt, match=str(PRIMES[column])):
        Setsum.from_digest(digest)
    with pytest.raises(Corrupt, match=str(PRIMES[column])):
        Setsum.from_hex(digest.hex())


@pytest.mark.parametrize(
    "text", ["", "00" * 15, "00" * 17, "00" * 32, "0g" * 16, "AA" * 16, "0x" + "0" * 30, " 0" * 16]
)
def test_text_that_is_not_a_digest_is_corrupt(text):
    with pytest.raises(Corrupt, match="32 lower-case hex digits"):
        Setsum.from_hex(text)


@pytest.mark.parametrize("length", [0, 15, 17, 32])
def test_a_digest_of_another_length_is_corrupt(length):
    with pytest.raises(Corrupt, match="16 bytes"):
        Setsum.from_digest(bytes(length))
