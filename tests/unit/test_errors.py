"""The six kinds of errors, each with a location, a remedy and an exit code."""

from __future__ import annotations

import pytest

from lancelsm import errors
from lancelsm.errors import Ambiguous, Contended, Corrupt, Fenced, Invalid, LsmError, Unavailable


@pytest.mark.parametrize(
    ("kind", "code"),
    [(Contended, 3), (Fenced, 3), (Ambiguous, 5), (Unavailable, 6), (Invalid, 1), (Corrupt, 4)],
)
def test_each_kind_has_a_name_and_an_exit_code(kind, code):
    error = kind("it happened", remedy="Do this", table="t")
    assert error.exit_code == code
    assert error.document()["error"]["kind"] == error.kind == kind.__name__


def test_there_are_six_kinds():
    assert len([e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, LsmError)]) == 7


def test_the_text_has_message_location_and_remedy():
    error = Fenced("held by 'b'", remedy="Stop this writer", table="s3://t", region="r", position=None)
    assert str(error) == "held by 'b' [table s3://t, region r]. Stop this writer"
    assert str(Contended("too slow")) == "too slow. Retry"
    assert str(Corrupt("gone", object="k")).startswith("gone [object k]. lancelsm scrub lists")
    assert str(Unavailable("no answer", remedy="Retry")) == "no answer. Retry"


def test_no_error_has_the_password_of_an_endpoint():
    text = "GET http://user:secret@127.0.0.1:1/b/x failed (https://user:s%40cret@host)"
    error = Unavailable(text, remedy="Retry", redacted=text)
    assert str(error) == "GET http://***@127.0.0.1:1/b/x failed (https://***@host). Retry"
    assert error.args == (error.message,) == (error.redacted,)
    assert Invalid("s3://lake/a@b file:///a@b", remedy="x").message == "s3://lake/a@b file:///a@b"


def test_error_context_adds_the_location_that_the_error_lacks():
    with (
        pytest.raises(Invalid) as caught,
        errors.error_context(table="t", region="r"),
        errors.error_context(region="of rows"),
    ):
        raise Invalid("wrong", row=3)
    assert caught.value.where == {"table": "t", "region": "of rows", "row": 3}


def test_the_document_has_message_remedy_and_location():
    error = Corrupt("gone", remedy="Scrub", table="t", position=7)
    assert error.document() == {
        "error": {"kind": "Corrupt", "message": "gone", "remedy": "Scrub", "table": "t", "position": 7}
    }
