"""Downloads, against a server on this machine: whole and checked, or nothing."""

import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kfl.core.errors import ConfigError, DataError
from kfl.data import DATASETS, Download, RemoteFile, Source, download, downloadable
from kfl.data.source import fetch

A, B = b"first" * 30_000, b"second"


class Server:
    """Serves `content`; files in `broken` stop half way."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.broken: set[str] = set()
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                outer.requests.append(name)
                body = outer.content.get(name)
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if name in outer.broken else body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/files"


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def remote(name: str, content: bytes, **members: int) -> RemoteFile:
    return RemoteFile(name, hashlib.md5(content).hexdigest(), len(content), members)


class Toy(Source):
    def files(self, data_dir):
        return []

    def decode(self, data_dir, cache_dir):
        raise AssertionError("there is nothing to decode")

    def by_hand(self, data_dir):
        return f"put a and b into {data_dir}/toy"


def source(*files: RemoteFile) -> Source:
    return Toy("toy", "a toy", 2, download=Download("http://127.0.0.1:9/unused", "toy", files))


def left_behind(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def test_fetches_checks_and_reports(tmp_path: Path, server: Server) -> None:
    server.content = {"a": A, "b": B}
    seen: list[tuple[int, int | None]] = []
    files = source(remote("a", A), remote("b", B))
    folder = fetch(files, tmp_path, lambda done, total: seen.append((done, total)), server.url)
    assert folder == tmp_path / "toy"
    assert (folder / "a").read_bytes() == A and (folder / "b").read_bytes() == B
    assert left_behind(folder) == ["a", "b"]
    done = [d for d, _ in seen]
    assert done == sorted(done) and seen[-1] == (len(A) + len(B), len(A) + len(B)) and len(seen) > 3
    fetch(files, tmp_path, None, server.url)
    assert server.requests == ["a", "b"], "what is there is not fetched again"
    (folder / "b").write_bytes(b"damaged")
    fetch(files, tmp_path, None, server.url)
    assert (folder / "b").read_bytes() == B


def test_a_broken_transfer_leaves_nothing(tmp_path: Path, server: Server) -> None:
    server.content, server.broken = {"a": A}, {"a"}
    with pytest.raises(DataError, match=r"cannot be fetched .*: put a and b into"):
        fetch(source(remote("a", A)), tmp_path, None, server.url)
    assert left_behind(tmp_path) == []


def test_a_wrong_checksum_leaves_nothing_and_keeps_the_old_file(tmp_path: Path, server: Server) -> None:
    server.content = {"a": A[:-1] + b"x"}
    with pytest.raises(DataError, match=r"not the expected file: its md5 is not [0-9a-f]{32}"):
        fetch(source(remote("a", A)), tmp_path, None, server.url)
    assert left_behind(tmp_path) == []
    (tmp_path / "toy" / "a").write_bytes(b"mine")
    with pytest.raises(DataError):
        fetch(source(remote("a", A)), tmp_path, None, server.url)
    assert (tmp_path / "toy" / "a").read_bytes() == b"mine"


def test_an_absent_file_says_what_to_put_where(tmp_path: Path, server: Server) -> None:
    with pytest.raises(DataError, match=r"cannot be fetched \(Not Found\): put a and b into .*toy"):
        fetch(source(remote("a", A)), tmp_path, None, server.url)


@pytest.mark.parametrize("name", sorted(downloadable()))
def test_without_a_network_the_sentence_says_what_to_put_where(tmp_path: Path, monkeypatch, name) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as closed:  # bound, not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(DataError, match=r"cannot be fetched .*refused.*: put ") as caught:
            download(name, tmp_path, base_url=url)
    assert str(tmp_path / DATASETS[name].download.folder) in str(caught.value)
    assert left_behind(tmp_path) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path, server: Server) -> None:
    (tmp_path / "toy").write_text("in the way")
    with pytest.raises(DataError, match="cannot be written"):
        fetch(source(remote("a", A)), tmp_path, None, server.url)


def test_only_some_datasets_are_downloads(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one of mnist, cifar10"):
        download("mnist-5k", tmp_path)


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_only_the_expected_members_leave_an_archive(tmp_path: Path, server: Server) -> None:
    content = archive(
        (tarfile.TarInfo("bin/one"), b"1" * 10),
        (tarfile.TarInfo("../escape"), b"evil"),
        (tarfile.TarInfo("bin/readme.html"), b"not wanted"),
        (tarfile.TarInfo("bin/two"), b"2" * 20),
    )
    server.content = {"t.tar.gz": content}
    members = {"bin/one": 10, "bin/two": 20}
    files = source(RemoteFile("t.tar.gz", hashlib.md5(content).hexdigest(), len(content), members))
    folder = fetch(files, tmp_path / "data", None, server.url)
    assert left_behind(tmp_path) == ["data/toy/bin/one", "data/toy/bin/two"]
    assert (folder / "bin" / "two").read_bytes() == b"2" * 20
    fetch(files, tmp_path / "data", None, server.url)
    assert server.requests == ["t.tar.gz"]


def link(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (archive((tarfile.TarInfo("bin/one"), b"1" * 9)), "not the expected archive: it has not the files"),
        (archive((link("bin/one"), b"")), "not the expected archive: it has not the files"),
        (archive((tarfile.TarInfo("bin/other"), b"1" * 10)), "has not the files that it should have"),
        (b"no archive at all", "not the expected archive"),
        (archive((tarfile.TarInfo("bin/one"), b"1" * 10))[:-40], "not the expected archive"),
    ],
    ids=["too short", "a link", "another name", "no archive", "cut"],  # the bytes hold the time: not for a name
)
def test_an_archive_that_is_not_as_expected_leaves_nothing(tmp_path, server: Server, content, sentence) -> None:
    server.content = {"t.tar.gz": content}
    files = source(RemoteFile("t.tar.gz", hashlib.md5(content).hexdigest(), len(content), {"bin/one": 10}))
    with pytest.raises(DataError, match=sentence):
        fetch(files, tmp_path, None, server.url)
    assert left_behind(tmp_path) == []
    assert list((tmp_path / "toy").iterdir()) == []


def test_members_leave_a_zip_too_and_their_sizes_may_be_unknown(tmp_path: Path, server: Server) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("gzip/one", b"1" * 10)
        archive.writestr("../escape", b"evil")
    content = buffer.getvalue()
    server.content = {"z.zip": content}
    files = source(RemoteFile("z.zip", hashlib.md5(content).hexdigest(), members={"gzip/one": None}))
    fetch(files, tmp_path / "data", None, server.url)
    assert left_behind(tmp_path) == ["data/toy/gzip/one"]
    fetch(files, tmp_path / "data", None, server.url)
    assert server.requests == ["z.zip"], "what is there is not fetched again"
    other = source(RemoteFile("z.zip", hashlib.md5(content).hexdigest(), members={"gzip/two": None}))
    with pytest.raises(DataError, match="not the expected archive"):
        fetch(other, tmp_path / "data", None, server.url)


def test_without_a_published_md5_a_whole_file_is_kept_and_a_broken_one_is_not(tmp_path: Path, server: Server) -> None:
    seen: list[tuple[int, int | None]] = []
    server.content = {"a": A}
    fetch(source(RemoteFile("a")), tmp_path, lambda done, total: seen.append((done, total)), server.url)
    assert (tmp_path / "toy" / "a").read_bytes() == A and {total for _, total in seen} == {None}
    (tmp_path / "toy" / "a").unlink()
    server.broken = {"a"}
    with pytest.raises(DataError, match="cannot be fetched"):
        fetch(source(RemoteFile("a")), tmp_path, None, server.url)
    assert left_behind(tmp_path) == []
