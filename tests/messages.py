"""The messages of errors."""

from collections.abc import Callable

import pytest


def message_of(
    error: type[Exception] | tuple[type[Exception], ...],
    call: Callable[..., object],
    *args,
    **options,
) -> str:
    """The one line with which a call is refused."""
    with pytest.raises(error) as caught:
        call(*args, **options)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message
