"""Downloads come whole or leave nothing, one at a time, and only when asked for."""

import contextlib
import errno
import fcntl
import hashlib
import http.server
import logging
import lzma
import os
import pathlib
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time

import attrs
import pytest

from tasks import download, sqlite_file
from tasks.task import TaskError

NAME = "tiny.sqlite"

_HOLD_LOCK = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


@attrs.define
class Server:
    """What the loopback server answers, and what it was asked."""

    url: str
    body: bytes = b""
    status: int = 200
    claimed_length: int | None = None
    delay: float = 0.0
    requests: list[str] = attrs.field(factory=list)


@pytest.fixture
def server():
    answers = Server(url="")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answers.requests.append(self.path)
            time.sleep(answers.delay)
            self.send_response(answers.status)
            length = answers.claimed_length
            if length is None:
                length = len(answers.body)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(answers.body)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        answers.url = f"http://127.0.0.1:{httpd.server_port}/data"
        thread = threading.Thread(target=httpd.serve_forever, args=(0.02,))
        thread.start()
        yield answers
        httpd.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("database") / NAME
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TABLE examples (split_name TEXT, client_id TEXT, "
            "serialized_example_proto BLOB)"
        )
        connection.execute(
            "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, "
            "num_examples INTEGER)"
        )
        connection.execute("CREATE INDEX by_client ON examples (client_id)")
        connection.executemany(
            "INSERT INTO examples VALUES ('train', ?, ?)",
            ((f"client_{i % 9}", os.urandom(300)) for i in range(600)),
        )
        connection.commit()
    return path


@pytest.fixture
def cached(tmp_path, database) -> pathlib.Path:
    return pathlib.Path(shutil.copy(database, tmp_path / NAME))


def _files(folder: pathlib.Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_downloads_a_whole_file(server, tmp_path, database):
    server.body = lzma.compress(database.read_bytes())
    cache = tmp_path / "new" / "cache"
    assert not download.is_cached(NAME, str(cache))
    path = download.obtain(NAME, str(cache), server.url)
    assert path == str(cache / NAME)
    assert pathlib.Path(path).read_bytes() == database.read_bytes()
    assert _files(cache) == {NAME, f"{NAME}.verified"}
    assert server.requests == [f"/data/{NAME}.lzma"]
    assert download.is_cached(NAME, str(cache))
    assert sqlite_file.is_remembered(path)


def _whole(database):
    return lzma.compress(database.read_bytes())


@pytest.mark.parametrize(
    ("make_answer", "reason"),
    [
        (lambda d: {"body": _whole(d)[:-900], "claimed_length": len(_whole(d))}, "of"),
        (lambda d: {"body": _whole(d)[:-900]}, "ends too early"),
        (lambda d: {"body": b""}, "ends too early"),
        (lambda d: {"body": b"<html>Sign in</html>"}, "not an LZMA file"),
        (lambda d: {"body": lzma.compress(b"hello" * 99)}, "no SQLite header"),
        (lambda d: {"body": lzma.compress(d.read_bytes()[:-4096])}, "truncated"),
        (lambda d: {"body": b"gone", "status": 404}, "HTTP 404"),
        (lambda d: {"body": b"oh", "status": 503}, "HTTP 503"),
    ],
)
def test_a_failed_download_leaves_nothing(
    server, tmp_path, database, make_answer, reason
):
    for name, value in make_answer(database).items():
        setattr(server, name, value)
    with pytest.raises(TaskError, match=reason) as error:
        download.obtain(NAME, str(tmp_path), server.url)
    message = str(error.value)
    assert server.url in message and "--data=generated" in message
    assert str(tmp_path / NAME) in message and "\n" not in message
    assert not _files(tmp_path)


def test_data_after_the_stream_are_an_error(server, tmp_path, database, monkeypatch):
    monkeypatch.setattr(download, "_CHUNK_SIZE", 1000)
    server.body = _whole(database) + b"x" * 5000
    with pytest.raises(TaskError, match="after the end"):
        download.obtain(NAME, str(tmp_path), server.url)
    assert not _files(tmp_path)


def test_a_refused_connection_is_named_and_leaves_nothing(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(TaskError, match=r"cannot download .*refused"):
        download.obtain(NAME, str(tmp_path), f"http://127.0.0.1:{port}")
    assert not _files(tmp_path)


def test_a_full_disk_is_one_line_and_leaves_nothing(
    server, tmp_path, database, monkeypatch
):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    server.body = _whole(database)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TaskError, match=r"No space left.*--cache_dir"):
        download.obtain(NAME, str(tmp_path), server.url)
    assert not _files(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TaskError, match=r"cannot write .*--cache_dir"):
        download.obtain(NAME, str(tmp_path / "file" / "cache"), server.url)
    assert not server.requests


def test_an_interrupted_download_leaves_nothing(
    server, tmp_path, database, monkeypatch
):
    def interrupt(path):
        raise KeyboardInterrupt

    server.body = _whole(database)
    monkeypatch.setattr(sqlite_file, "find_problem", interrupt)
    with pytest.raises(KeyboardInterrupt):
        download.obtain(NAME, str(tmp_path), server.url)
    assert not _files(tmp_path)


def test_a_good_file_is_not_touched(server, cached):
    before = cached.stat()
    assert download.obtain(NAME, str(cached.parent), server.url) == str(cached)
    assert cached.stat().st_mtime_ns == before.st_mtime_ns
    assert not server.requests


def test_at_once_only_one_downloads(server, tmp_path, database):
    server.body = _whole(database)
    server.delay = 0.2
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(
                download.obtain(NAME, str(tmp_path), server.url)
            )
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [str(tmp_path / NAME)] * 4
    assert len(server.requests) == 1
    assert _files(tmp_path) == {NAME, f"{NAME}.verified"}


@contextlib.contextmanager
def _other_process_holds(lock: pathlib.Path):
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD_LOCK, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_waits_for_another_process_and_takes_its_file(
    server, tmp_path, database, caplog
):
    caplog.set_level(logging.WARNING)
    found = []
    with _other_process_holds(tmp_path / f"{NAME}.lock") as process:
        thread = threading.Thread(
            target=lambda: found.append(
                download.obtain(NAME, str(tmp_path), server.url)
            )
        )
        thread.start()
        time.sleep(0.2)
        assert not found and not server.requests
        shutil.copy(database, tmp_path / NAME)
        process.stdin.write("release\n")
        process.stdin.flush()
        thread.join()
    assert found == [str(tmp_path / NAME)]
    assert not server.requests
    assert _files(tmp_path) == {NAME, f"{NAME}.verified"}


def test_what_a_killed_process_left_does_not_block(server, tmp_path, database):
    server.body = _whole(database)
    (tmp_path / f"{NAME}.abc.partial").write_bytes(b"half")
    with _other_process_holds(tmp_path / f"{NAME}.lock") as process:
        process.kill()
        process.wait()
    download.obtain(NAME, str(tmp_path), server.url)
    assert _files(tmp_path) == {NAME, f"{NAME}.verified"}


def test_a_file_system_without_locks_is_no_obstacle(
    server, tmp_path, database, monkeypatch
):
    def unsupported(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    server.body = _whole(database)
    monkeypatch.setattr(fcntl, "flock", unsupported)
    download.obtain(NAME, str(tmp_path), server.url)
    assert (tmp_path / NAME).read_bytes() == database.read_bytes()


PUBLISHED = b"39, State-gov, 77516\n" * 4000


@pytest.fixture
def published(server):
    server.body = PUBLISHED
    return download.PublishedFile(
        name="people.csv",
        url=f"{server.url}/people.csv",
        num_bytes=len(PUBLISHED),
        md5=hashlib.md5(PUBLISHED, usedforsecurity=False).hexdigest(),
    )


def test_a_published_file_comes_whole(server, published, tmp_path):
    cache = tmp_path / "new"
    path = download.obtain_published(published, str(cache))
    assert path == str(cache / "people.csv")
    assert pathlib.Path(path).read_bytes() == PUBLISHED
    assert _files(cache) == {"people.csv"}
    assert server.requests == ["/data/people.csv"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"body": PUBLISHED[:-7]}, "it has 83993 bytes, not 84000"),
        ({"body": PUBLISHED[:-7], "claimed_length": 84000}, "83993 of 84000 bytes"),
        ({"body": PUBLISHED.replace(b"39", b"93")}, "its MD5 is .*, not "),
        ({"body": b"<html>Sign in</html>"}, "it has 20 bytes, not 84000"),
        ({"body": b"gone", "status": 404}, "HTTP 404"),
    ],
)
def test_anything_but_the_published_file_leaves_nothing(
    server, published, tmp_path, answer, reason
):
    for name, value in answer.items():
        setattr(server, name, value)
    with pytest.raises(TaskError, match=reason) as error:
        download.obtain_published(published, str(tmp_path))
    message = str(error.value)
    assert published.url in message and "--data=generated" in message
    assert str(tmp_path / "people.csv") in message and "\n" not in message
    assert not _files(tmp_path)


def test_an_own_copy_of_a_published_file_is_left_alone(server, published, tmp_path):
    (tmp_path / "people.csv").write_bytes(b"mine")
    path = download.obtain_published(published, str(tmp_path))
    assert pathlib.Path(path).read_bytes() == b"mine"
    assert not server.requests


def _truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def _truncate_to_nothing(path):
    os.truncate(path, 0)


def _scribble(path):
    with path.open("r+b") as file:
        file.seek(4096 * 5)
        file.write(os.urandom(4096 * 8))


def _drop_table(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE examples")
        connection.commit()


def _not_a_database(path):
    path.write_bytes(b"<html>" * 99)


@pytest.mark.parametrize(
    "spoil",
    [_truncate, _truncate_to_nothing, _scribble, _drop_table, _not_a_database],
)
@pytest.mark.parametrize("data", ["auto", "tff"])
def test_a_corrupt_file_is_named_and_kept(server, cached, spoil, data):
    spoil(cached)
    spoilt = cached.read_bytes()
    with pytest.raises(TaskError, match="delete it") as error:
        download.resolve_source(data, NAME, str(cached.parent), server.url)
    assert str(error.value).startswith(f"{cached} is not a whole")
    assert "\n" not in str(error.value)
    assert cached.read_bytes() == spoilt
    assert not server.requests


def test_content_is_checked_once(cached, monkeypatch):
    checks = []
    check = sqlite_file._find_content_problem
    monkeypatch.setattr(
        sqlite_file,
        "_find_content_problem",
        lambda path: checks.append(path) or check(path),
    )
    for _ in range(3):
        sqlite_file.verify(str(cached))
    assert len(checks) == 1
    os.utime(cached, ns=(1, 1))
    sqlite_file.verify(str(cached))
    assert len(checks) == 2
    (cached.parent / f"{NAME}.verified").write_text("not json")
    sqlite_file.verify(str(cached))
    assert len(checks) == 3


def test_content_is_checked_every_time_in_an_unwritable_folder(cached, monkeypatch):
    def refuse(**kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(sqlite_file.tempfile, "mkstemp", refuse)
    sqlite_file.verify(str(cached))
    assert not sqlite_file.is_remembered(str(cached))
    sqlite_file.verify(str(cached))
    assert _files(cached.parent) == {NAME}


def test_verify_names_a_missing_file(tmp_path):
    with pytest.raises(TaskError, match=r"tiny\.sqlite does not exist"):
        sqlite_file.verify(str(tmp_path / NAME))


def test_auto_never_downloads(server, tmp_path, database):
    server.body = _whole(database)
    source, notice = download.resolve_source("auto", NAME, str(tmp_path), server.url)
    assert source == "generated"
    assert "--data=tff" in notice and str(tmp_path / NAME) in notice
    assert "\n" not in notice
    assert not server.requests and not _files(tmp_path)


def test_auto_takes_the_cached_file(cached):
    assert download.resolve_source("auto", NAME, str(cached.parent)) == ("tff", None)


def test_tff_downloads(server, tmp_path, database):
    server.body = _whole(database)
    answer = download.resolve_source("tff", NAME, str(tmp_path), server.url)
    assert answer == ("tff", None)
    assert download.is_cached(NAME, str(tmp_path))


def test_generated_ignores_the_cache(cached):
    _truncate(cached)
    answer = download.resolve_source("generated", NAME, str(cached.parent))
    assert answer == ("generated", None)


def test_an_unknown_source_is_refused(tmp_path):
    with pytest.raises(TaskError, match="--data=real: choose one of"):
        download.resolve_source("real", NAME, str(tmp_path))


def test_the_cache_folder_is_tffs_by_default():
    assert download.cache_folder("/a/b") == "/a/b"
    assert download.cache_folder("~/b") == os.path.expanduser("~/b")
    assert download.cache_folder() == os.path.expanduser("~/.tff")
