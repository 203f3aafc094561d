"""The files that a fleet's server leaves behind: whatever type stands in them, a reader has a value or one sentence."""

import copy
import json
import os
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from kfl.core.errors import KflError, RunFolderError
from kfl.scheduling import SCHEDULERS
from kfl_fleet import FleetSettings, ServerConfig
from kfl_fleet.messages.records import MOST_BYTES, read_node_ids, read_own
from kfl_fleet.server.status import read_status

WRONG = (None, True, -1, 10**400, 1.5, float("nan"), "word", [], [1], {}, {"a": 1})
"""Values of every type; one of each is right somewhere."""


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, the value itself among them."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*at, key))


def with_value(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    inner = found = copy.deepcopy(value)
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = new
    return found


def test_status_has_a_value_or_one_sentence_whatever_type_stands_in_the_files(loop, small, serve_fleet) -> None:
    folder = serve_fleet(*loop(small(devices=1, rounds=1, scheduler=SCHEDULERS["all"]())))
    refused = 0
    for name in ("fleet.json", "fleet.jsonl", "devices.json"):
        text = (folder / name).read_text()
        whole = json.loads(text)
        for at in places(whole):
            for wrong in WRONG:
                (folder / name).write_text(json.dumps(with_value(whole, at, wrong)) + "\n")
                try:
                    read_status(folder).to_dict()
                except KflError as problem:
                    assert "\n" not in str(problem) and name in str(problem)
                    refused += 1
        (folder / name).write_text(text)
    assert refused > 100
    assert read_status(folder).devices_seen == 1


@pytest.mark.parametrize("name", [field.name for field in fields(FleetSettings)])
def test_fleet_table_has_a_value_or_one_sentence_whatever_type_stands_in_a_field(name) -> None:
    for wrong in (*WRONG, -(10**400), 0, "none", "\x00", [1.5], [10**400], ["a"], "9" * 5000):
        try:
            config = ServerConfig.from_table({"fleet": {name: wrong}})
            config.validate()
        except KflError as problem:
            assert "\n" not in str(problem)
        else:
            assert ServerConfig.from_toml(config.to_toml()).fleet == config.fleet


@pytest.mark.parametrize("text", ["", "[]", "3", '{"a": "1"}', '{"1": 2}', '{"1": null}', '{"-1": "7"}'])
def test_read_node_ids_refuses_what_holds_no_ids(tmp_path, text) -> None:
    (tmp_path / "nodes.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"nodes\.json is damaged"):
        read_node_ids(tmp_path / "nodes.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_read_own_neither_waits_for_a_pipe_nor_follows_a_link_nor_reads_without_end(tmp_path) -> None:
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    for name in ("link", "pipe", "huge", "."):
        with pytest.raises(RunFolderError, match="is damaged"):
            read_own(tmp_path / name)


def test_read_node_ids_returns_what_was_written_and_nothing_before(tmp_path) -> None:
    assert read_node_ids(tmp_path / "nodes.json") == {}
    (tmp_path / "nodes.json").write_text('{"3": "12345678901234567890"}')
    assert read_node_ids(tmp_path / "nodes.json") == {3: "12345678901234567890"}


@pytest.mark.parametrize("damage", [{"devices": None}, {"devices": {"0": {"node": 7}}}, {"refused": []}])
def test_server_keeps_the_name_of_the_run_when_its_record_of_members_is_damaged(
    loop, small, serve_fleet, damage
) -> None:
    """Devices know their models by that name; they introduce themselves again."""
    grid, config = loop(small(devices=2, rounds=2, scheduler=SCHEDULERS["all"]()))
    folder = serve_fleet(grid, config)
    before = json.loads((folder / "fleet.json").read_text())
    (folder / "summary.json").unlink()
    (folder / "fleet.json").write_text(json.dumps({**before, **damage}))
    serve_fleet(grid, config)
    after = json.loads((folder / "fleet.json").read_text())
    assert after["run"] == before["run"]
    assert set(after["devices"]) == {"0", "1"}
