"""Outside a node the numbers are the machine's own; what is held here is that they are read and written right."""

import pytest
from model import eat, handle_request
from omni import Context, Request


def test_shows_what_the_kernel_shows():
    answer = handle_request(Request(json={}), Context.inactive())
    assert answer["meminfo"]["MemTotal"] * 1024 == answer["psutil"]["total"]
    assert answer["eaten_mib"] == 0


def test_an_empty_body_only_looks():
    assert handle_request(Request(body=b""), Context.inactive())["eaten_mib"] == 0


def test_eats_the_requested_amount():
    assert handle_request(Request(json={"eat_mib": 3}), Context.inactive())["eaten_mib"] == 3


def test_every_page_is_written():
    assert all(eat(1)[::4096])


@pytest.mark.parametrize("bad", [{"eat_mib": -1}, {"eat_mib": "1"}, {"eat_mib": True}, [1]])
def test_a_wrong_amount_is_refused(bad):
    assert handle_request(Request(json=bad), Context.inactive()).status == 400
