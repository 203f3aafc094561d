"""What `studies.fleet.chaos` found, each as small as it can be: moments at which a server or a message may be lost."""

import pytest

from kfl.algorithms import Kfl
from kfl.core.errors import KflError
from kfl.runfolder import RunReader
from kfl.scheduling import SCHEDULERS
from kfl.simulation import load_run
from tests.fleet.conftest import serve
from tests.fleet.messages import round_of


class PulledPlugError(BaseException):
    """Ends the server without any of its own clean-up."""


@pytest.fixture
def fleet(loop, small):
    """All four devices in each of two rounds."""
    return loop(small(rounds=2, widths=(16,), algorithm=Kfl(local_steps=1), scheduler=SCHEDULERS["all"]()))


def pull_the_plug(grid, number):
    """End the server after three devices have done their work in this round, once."""
    pulled = []

    def twist(device, asked, reply):
        if round_of(asked) == number and device == 2 and not pulled:
            pulled.append(device)
            raise PulledPlugError
        return reply

    grid.twist = twist


def asked_in(grid, number):
    return [device for device, message in grid.asked if round_of(message) == number]


def test_a_round_that_cannot_be_kept_is_not_told(fleet, tmp_path):
    grid, config = fleet
    state = tmp_path / "run" / "state"

    def take_the_room(device, asked, reply):
        if round_of(asked) == 1 and state.is_dir():
            state.rename(tmp_path / "aside")
            state.write_text("in the way")  # as a full disk is: no checkpoint can be written
        return reply

    grid.twist = take_the_room
    with pytest.raises(KflError, match="cannot be written"):
        serve(grid, config, tmp_path / "run")
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    assert before.count(b"\n") == 1, "the history tells of a round that the server will not remember"
    state.unlink()
    (tmp_path / "aside").rename(state)
    grid.twist = lambda device, asked, reply: reply
    serve(grid, config, tmp_path / "run")
    after = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    assert after.startswith(before) and after.count(b"\n") == 2


@pytest.mark.parametrize("left", ["", "a part"])
def test_a_round_that_was_kept_is_not_played_again_though_the_history_did_not_get_it(fleet, tmp_path, left):
    grid, config = fleet
    pull_the_plug(grid, 1)
    with pytest.raises(PulledPlugError):
        serve(grid, config, tmp_path / "run")
    history, trail = (tmp_path / "run" / name for name in ("rounds.jsonl", "trail.jsonl"))
    line, seen = history.read_bytes(), trail.read_bytes()
    assert line.count(b"\n") == 1
    history.write_bytes(line[: len(left)])  # killed after the checkpoint, before the lines were there
    trail.write_bytes(b"")
    serve(grid, config, tmp_path / "run")
    assert history.read_bytes().startswith(line) and trail.read_bytes().startswith(seen)
    assert asked_in(grid, 0) == [0, 1, 2, 3], "no device is asked twice for a round that is done"
    assert [log.round for log in load_run(tmp_path / "run")[1].rounds] == [0, 1]


@pytest.mark.parametrize("number", [0, 1])
def test_a_round_played_again_counts_the_joules_of_a_device_that_worked_for_it_and_is_gone(fleet, tmp_path, number):
    grid, config = fleet
    pull_the_plug(grid, number)
    with pytest.raises(PulledPlugError):
        serve(grid, config, tmp_path / "run")
    grid.online.pop(1000)
    serve(grid, config, tmp_path / "run")
    log = load_run(tmp_path / "run")[1].rounds[number]
    assert log.devices == (0, 1, 2, 3) and log.lost == (0,)
    assert log.compute_energy_j[0] > 0


@pytest.mark.parametrize("answer", ["lost", "refused"])
def test_a_message_that_may_have_arrived_is_charged_though_the_superlink_did_not_say_so(fleet, tmp_path, answer):
    """The connection breaks after the messages are there; Flower sends them once more, and they are refused as old."""
    grid, config = fleet
    honest = grid.push_messages

    def push(messages):
        ids = list(honest(messages))
        if round_of(grid.asked[-1][1]) != 0:
            return ids
        if answer == "lost":
            raise ConnectionError("reset by peer")
        return [""] * len(ids)

    grid.push_messages = push
    serve(grid, config, tmp_path / "run")
    log = load_run(tmp_path / "run")[1].rounds[0]
    assert log.lost == (0, 1, 2, 3)
    assert {fault["fault"] for fault in log.faults} == {"late"}
    assert min(log.compute_energy_j) > 0


def test_a_torn_line_of_facts_costs_no_other(fleet, tmp_path):
    grid, config = fleet
    pull_the_plug(grid, 1)
    with pytest.raises(PulledPlugError):
        serve(grid, config, tmp_path / "run")
    with (tmp_path / "run" / "fleet.jsonl").open("a") as file:
        file.write('{"round": 1, "ti')  # the power went while it was written
    serve(grid, config, tmp_path / "run")
    assert [fact["round"] for fact in RunReader(tmp_path / "run").fleet_rounds()] == [0, 1]


def test_the_record_names_the_uploads_that_a_round_used(fleet, tmp_path):
    grid, config = fleet
    serve(grid, config, tmp_path / "run")
    facts = RunReader(tmp_path / "run").fleet_rounds()
    uploads = [answer["upload"] for fact in facts for answer in fact["answers"].values()]
    assert len(set(uploads)) == len(uploads) == 8, "every upload of every device and round has another name"
