"""`Folder` opens what lies in it and nothing else."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfl.core.files import Folder, LockedError, UnsafeFileError


@pytest.fixture
def folder(tmp_path):
    with Folder(tmp_path) as found:
        yield found


def test_folder_refuses_links_pipes_and_large_files(folder, tmp_path):
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "inside").mkdir()
    with folder.folder("inside") as inside:
        (inside.path / "link").symlink_to(tmp_path / "secret")
        os.mkfifo(inside.path / "pipe")
        (inside.path / "large").write_bytes(bytes(101))
        (inside.path / "folder").mkdir()
        for name, why in (("link", "is a link"), ("pipe", "not a regular"), ("large", "101 bytes, and 100 are")):
            with pytest.raises(UnsafeFileError, match=why):
                inside.read(name, most_bytes=100)
        with pytest.raises(OSError, match="folder"):
            inside.read("folder", most_bytes=100)
        assert inside.read("large", most_bytes=101) == bytes(101)
        with pytest.raises(UnsafeFileError, match="more than the 100 bytes"):
            _read_while_it_grows(inside)


def _read_while_it_grows(folder):
    """A file that is small when it is opened and large when it is read."""
    (folder.path / "growing").write_bytes(bytes(10))
    whole = folder.open_regular

    def grow_after_opening(name, most_bytes):
        file = whole(name, most_bytes)
        (folder.path / name).write_bytes(bytes(1000))
        return file

    folder.open_regular = grow_after_opening
    return folder.read("growing", most_bytes=100)


def test_folder_refuses_a_folder_that_is_a_link(folder, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="link"):
        folder.folder("link")


def test_folder_writes_over_a_link_and_not_through_it(folder, tmp_path):
    other = tmp_path / "other"
    other.write_text("untouched")
    (tmp_path / "name").symlink_to(other)
    folder.write("name", b"new", private=True)
    assert other.read_text() == "untouched" and not (tmp_path / "name").is_symlink()
    assert (tmp_path / "name").read_bytes() == b"new" and (tmp_path / "name").stat().st_mode & 0o777 == 0o600
    assert folder.names() == ["name", "other"]
    folder.remove("name")
    folder.remove("name")
    assert folder.names() == ["other"]


def test_folder_stays_the_same_when_its_path_becomes_another(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "file").write_text("one")
    with Folder(tmp_path / "one") as folder:
        (tmp_path / "one").rename(tmp_path / "away")
        (tmp_path / "one").mkdir()
        (tmp_path / "one" / "file").write_text("two")
        assert folder.read("file", 100) == b"one"


def test_folder_locks_once_and_not_through_a_link(folder, tmp_path):
    with folder.locked(".lock"), pytest.raises(LockedError), folder.locked(".lock"):
        pass
    with folder.locked(".lock"):
        assert folder.names() == [".lock"]
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError), folder.locked("link"):
        pass
    assert not (tmp_path / "elsewhere").exists()


@given(st.text(max_size=20))
def test_folder_takes_single_names_only(name):
    single = name not in ("", ".", "..") and "/" not in name and "\0" not in name
    with Folder(Path.cwd()) as folder:
        if single:
            try:
                folder.remove(f"kfl-no-such-file-{name}")
            except (OSError, UnicodeEncodeError):
                return  # a name that this file system cannot hold
        else:
            with pytest.raises(ValueError, match="name of a file"):
                folder.read(name, 1)
