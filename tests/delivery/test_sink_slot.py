"""What people are shown of a sink."""

from penstock.delivery.sink_slot import SlotState, SlotStatus


def test_the_text_of_a_sink_does_not_control_the_terminal() -> None:
    status = SlotStatus()
    status.failed(SlotState.WAITING, "\x1b[2Jgrün\x07\nDETAIL: 1", "sink s of pipeline p")
    assert status.reason == "�[2Jgrün�\nDETAIL: 1"
