"""What people are shown of a sink."""

from penstock.delivery.seat import Shown, Standing


def test_what_a_sink_says_does_nothing_to_a_terminal() -> None:
    shown = Shown()
    shown.fails(Standing.WAITING, "\x1b[2Jgrün\x07\nDETAIL: 1", "sink s of pipeline p")
    assert shown.reason == "�[2Jgrün�\nDETAIL: 1"
