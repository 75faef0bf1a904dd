"""Messages on the wire: every one comes out as it went in."""

from __future__ import annotations

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw import messages
from hw.wire import decode, encode

KINDS = (*typing.get_args(messages.ToWorker), *typing.get_args(messages.FromWorker))


@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_comes_out_as_it_went_in(kind: type, data: st.DataObject) -> None:
    """Whatever its fields hold: numbers, names, tuples, none, other messages."""
    message = data.draw(st.from_type(kind))
    again, other = decode(encode((message, message)))
    assert type(again) is type(other) is kind
    assert repr(again) == repr(message)  # in which even a float that is no number equals itself
