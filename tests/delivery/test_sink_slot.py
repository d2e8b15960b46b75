"""What the status shows of a sink."""

from penstock.delivery.sink_slot import SlotState, SlotStatus


def test_text_from_a_sink_cannot_control_the_terminal() -> None:
    status = SlotStatus()
    status.failed(SlotState.WAITING, "\x1b[2Jgrün\x07\nDETAIL: 1", "sink s of pipeline p")
    assert status.reason == "�[2Jgrün�\nDETAIL: 1"
