import fcntl
import shutil

import pytest
from release_server import md5, serving

from proteinlm.data.sources import download as module
from proteinlm.data.sources.download import check, download, read_list
from proteinlm.errors import InputError

# More than some pieces of a download, and no byte like its neighbours.
CONTENT = b"".join(i.to_bytes(4, "big") for i in range(100_000))
SIZE, MD5 = len(CONTENT), md5(CONTENT)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.0)


@pytest.fixture
def server():
    with serving({"/file": CONTENT}) as server:
        yield server


def fetch(server, folder, size=SIZE, checksum=MD5, path="/file"):
    target = folder / "file"
    download(server.url + path, target, size, checksum)
    return target


def test_a_file_arrives_and_is_only_checked_the_second_time(server, tmp_path):
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [("/file", 0)]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_dropped_connections_go_on_with_the_missing_bytes_alone(server, tmp_path):
    server.drops = [100_000, 50_000, None]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [("/file", 0), ("/file", 100_000), ("/file", 150_000)]


def test_a_process_that_was_killed_goes_on_where_it_stopped(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:123_456])
    reported = []
    download(server.url + "/file", tmp_path / "file", SIZE, MD5, reported.append)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [("/file", 123_456)]
    assert reported == sorted(reported)
    assert reported[-1] == SIZE
    assert not (tmp_path / "file.part").exists()


def test_a_whole_part_is_not_asked_for_again(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == []


@pytest.mark.parametrize("left", [b"x" * 1000, b"x" * (SIZE + 5), CONTENT[:-1] + b"x"])
def test_a_part_of_another_file_is_thrown_away(server, tmp_path, left):
    (tmp_path / "file.part").write_bytes(left)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == ("/file", 0)


def test_a_server_that_ignores_ranges_starts_again(server, tmp_path):
    server.ranges = False
    server.drops = [100_000, None]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [("/file", 0), ("/file", 100_000)]


def test_a_server_that_ignores_ranges_and_always_breaks_is_given_up(server, tmp_path):
    server.ranges = False
    server.drops = [200_000] * 100
    with pytest.raises(InputError, match=r"beyond byte 200,000 after 8 attempts.*closed early.*resumes from there"):
        fetch(server, tmp_path)
    assert len(server.asked) == 1 + module.TRIES
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:200_000]


def test_an_answer_of_another_range_is_never_put_into_the_file(server, tmp_path):
    server.drops = [100_000]
    server.shift = 3
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [("/file", 0), ("/file", 100_000), ("/file", 0)]


def test_a_busy_server_is_asked_again_and_a_closed_door_is_not(server, tmp_path):
    server.statuses = [503, 429, 0, 502, 0]
    server.drops = [1000]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [("/file", 0)] * 3 + [("/file", 1000)] * 2
    server.statuses = [403]
    with pytest.raises(InputError, match="HTTP 403"):
        download(server.url + "/file", tmp_path / "other", SIZE, MD5)
    server.statuses = [503] * 100
    with pytest.raises(InputError, match="after 8 attempts.*503"):
        download(server.url + "/file", tmp_path / "other", SIZE, MD5)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_pause_doubles_and_the_servers_wish_is_heard(monkeypatch):
    pauses = []
    monkeypatch.setattr(module, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    for failures in range(1, module.TRIES):
        module._pause("x", module._DroppedError("x"), failures, 0)
    module._pause("x", module._DroppedError("x", 7.0), 1, 0)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 7]


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(InputError, match=f"came with the MD5 {MD5}.*says {'0' * 32}.*mirror"):
        fetch(server, tmp_path, checksum="0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_copy_is_told_at_once(server, tmp_path):
    with pytest.raises(InputError, match=r"has 400,000 bytes, the release's list says 400,001.*cut short"):
        fetch(server, tmp_path, size=SIZE + 1)
    assert len(server.asked) == 1


def test_a_truncated_copy_of_unknown_length_is_given_up(server, tmp_path):
    server.declares = {"/file": None}
    with pytest.raises(InputError, match="beyond byte 400,000"):
        fetch(server, tmp_path, size=SIZE + 1)
    (tmp_path / "file.part").unlink()
    with pytest.raises(InputError, match="more than the 399,999 bytes"):
        fetch(server, tmp_path, size=SIZE - 1)


def test_a_file_that_is_not_there(server, tmp_path):
    with pytest.raises(InputError, match=r"absent does not exist \(404\)"):
        fetch(server, tmp_path, path="/absent")
    assert list(tmp_path.iterdir()) == []
    assert read_list(server.url + "/absent") is None


def test_a_server_that_is_not_there(tmp_path):
    with serving({}) as server:
        pass
    with pytest.raises(InputError, match=r"after 8 attempts \(.*refused"):
        fetch(server, tmp_path)


def test_a_list_is_read_whole_or_not_at_all(server, monkeypatch):
    server.drops = [10, None]
    assert read_list(server.url + "/file") == CONTENT
    server.drops = [10] * 100
    with pytest.raises(InputError, match="closed early"):
        read_list(server.url + "/file")
    server.drops = []
    monkeypatch.setattr(module, "_LIST_BYTES", 1000)
    with pytest.raises(InputError, match="not the list of a release"):
        read_list(server.url + "/file")


def test_two_processes_do_not_write_one_file(server, tmp_path):
    with open(tmp_path / "file.part", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is downloading"):
            fetch(server, tmp_path)


def test_too_little_room_is_told_before_the_download(server, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _path: usage._replace(free=SIZE - 1))
    with pytest.raises(InputError, match=r"room for 399,999 bytes .* needs 400,000 more"):
        fetch(server, tmp_path)
    assert server.asked == []
    (tmp_path / "file.part").write_bytes(CONTENT[:10])
    assert fetch(server, tmp_path).read_bytes() == CONTENT


def test_a_file_that_was_damaged_since_is_not_used_and_not_removed(server, tmp_path):
    target = fetch(server, tmp_path)
    for content, message in ((CONTENT[:-1] + b"x", "has the MD5"), (CONTENT[:-1], "has 399,999 bytes")):
        target.write_bytes(content)
        with pytest.raises(InputError, match=message):
            fetch(server, tmp_path)
        assert target.read_bytes() == content
    with pytest.raises(InputError, match="cannot be read"):
        check(tmp_path / "absent", SIZE, MD5)
