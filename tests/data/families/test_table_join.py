import json
import random
import subprocess
import sys
import textwrap

import pytest

from proteinlm.data.families.table_join import COLUMNS, INDEX, USED, join_tables, key
from proteinlm.data.families.table_lookup import FamilyTables
from proteinlm.errors import InputError


def write(path, text):
    path.write_text(text)
    return path


def joined(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def tables(tmp_path):
    source = random.Random(1)
    text = "".join(
        f"P{source.randint(0, 3000):05d}\t{';'.join(f'PF{source.randint(0, 9):05d}' for _ in range(2))}\n"
        for _ in range(4000)
    )
    return [write(tmp_path / "a", text[: len(text) // 2 + 3]), write(tmp_path / "b", text[len(text) // 2 + 3 :])]


def test_number_of_partitions_and_order_of_work_change_nothing(tables, tmp_path):
    def backward(call, tasks, keyed=False):
        tasks = list(tasks)
        results = {id(task): call(task[1] if keyed else task) for task in reversed(tasks)}
        for task in tasks:
            yield (task[0], results[id(task)]) if keyed else results[id(task)]

    join_tables(tables, tmp_path / "one")
    one = joined(tmp_path / "one")
    assert set(one) == {*COLUMNS, INDEX, USED}
    join_tables(tables[::-1], tmp_path / "two", backward)
    assert joined(tmp_path / "two") == one
    join_tables(tables, tmp_path / "many", partition_bytes=1000)
    many = joined(tmp_path / "many")
    assert json.loads(many[INDEX])["partitions"] == 128
    for name in ("hashes", "keys", "checksums"):
        assert many[name] == one[name]


def test_what_a_killed_run_has_left_is_no_part_of_the_next(tables, tmp_path):
    join_tables(tables, tmp_path / "one")
    left = tmp_path / "two" / "rows" / "0000"
    left.mkdir(parents=True)
    (left / "123").write_bytes(b"half a row")
    join_tables(tables, tmp_path / "two")
    assert joined(tmp_path / "two") == joined(tmp_path / "one")


@pytest.mark.parametrize("text", ["", "\n\n", "<html>\n<body>\n", "P12345 PF00001\n", "accession\tpfam\n"])
def test_what_is_no_table_is_refused(tmp_path, text):
    good, bad = write(tmp_path / "good", "P1\tPF00001\n"), write(tmp_path / "pfam.tsv", text)
    with pytest.raises(InputError, match=r"pfam\.tsv has no usable row"):
        join_tables([good, bad], tmp_path / "out")
    assert not (tmp_path / "out" / INDEX).exists()


def test_too_many_tables(tmp_path):
    paths = [write(tmp_path / f"{i:02d}", f"P{i}\tPF000{i:02d}\n") for i in range(65)]
    with pytest.raises(InputError, match="65 family tables are more than 64"):
        join_tables(paths, tmp_path / "out")
    join_tables(paths[1:], tmp_path / "out")
    assert FamilyTables(tmp_path / "out").num_rows == 64


def test_keys_of_long_names_differ():
    names = [b"x" * 32, b"x" * 33, b"x" * 1000, b"x" * 999 + b"y"]
    assert key(names[0]) == names[0]
    assert len({key(name) for name in names}) == 4
    assert {len(key(name)) for name in names} == {32}


MEASURED = textwrap.dedent("""
    import resource, sys
    from pathlib import Path
    from proteinlm.data.families import table_join, table_lookup
    from proteinlm.data.sources.uniprot import Record
    table_lookup.RESIDENT_BYTES = 1 << 20
    rows, folder = int(sys.argv[1]), Path(sys.argv[2])
    with open(folder / "table", "w") as handle:
        for start in range(0, rows, 10_000):
            handle.write("".join(f"P{i:08d}\\tPF{i % 9973:05d}\\n" for i in range(start, start + 10_000)))
    table_join.join_tables([folder / "table"], folder / "joined", partition_bytes=1 << 20)
    tables = table_lookup.FamilyTables(folder / "joined")
    step = rows // 20_000
    for start in range(0, rows, 4_000 * step):
        names = [f"P{i:08d}" for i in range(start, min(start + 4_000 * step, rows), step)]
        found = tables.add([Record(name, b"", (), False, None) for name in names]).families
        assert found == [b"PF%05d" % (int(name[1:]) % 9973) for name in names]
    assert tables.unused()[0] == rows - 20_000
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
""")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_table(tmp_path):
    peaks = []
    for rows in (100_000, 500_000):
        folder = tmp_path / str(rows)
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, str(rows), str(folder)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.2 * peaks[0], peaks
