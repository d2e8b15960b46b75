"""What may and may not survive a power cut. Outcomes are random, so each test looks at many."""

from collections.abc import Iterator
from random import Random

import pytest

from penstock.testing.memory_files import SECTOR_BYTES, CachedDirectory, CachedFile, Entries, luck

SEEDS = range(200)
OLD, NEW = b"o" * 2000, b"n" * 2000


def cut(file: CachedFile) -> list[bytes]:
    return [bytes(file.after_power_cut(Random(seed)).content) for seed in SEEDS]


def sectors(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), SECTOR_BYTES):
        yield data[at : at + SECTOR_BYTES]


class TestFile:
    def test_an_unsynced_write_can_be_torn_between_any_of_its_sectors(self) -> None:
        file = CachedFile(OLD[:1500])
        file.write(0, NEW[:1500])
        shapes = {"".join(chr(sector[0]) for sector in sectors(data)) for data in cut(file)}
        assert shapes == {a + b + c for a in "on" for b in "on" for c in "on"}

    def test_a_sector_is_never_torn(self) -> None:
        file = CachedFile(OLD)
        file.write(0, NEW)
        assert all(len(set(sector)) == 1 for data in cut(file) for sector in sectors(data))

    def test_a_later_write_to_a_sector_includes_the_earlier_ones(self) -> None:
        file = CachedFile(b"....")
        file.write(0, b"1")
        file.write(1, b"2")
        assert set(cut(file)) == {b"....", b"1...", b"12.."}

    def test_writes_to_different_sectors_survive_in_any_order(self) -> None:
        file = CachedFile(bytes(1024))
        file.write(0, b"1")
        file.write(512, b"2")
        assert {(data[0], data[512]) for data in cut(file)} == {(0, 0), (49, 0), (0, 50), (49, 50)}

    @pytest.mark.parametrize("seed", SEEDS)
    def test_every_sector_is_as_it_was_at_some_point_since_the_last_sync(self, seed: int) -> None:
        random = Random(seed)
        file = CachedFile()
        versions = [b""]
        for _ in range(random.randrange(30)):
            match random.choice(["write", "write", "write", "grow", "sync"]):
                case "write":
                    file.write(random.randrange(4000), random.randbytes(random.randrange(2000)))
                case "grow":
                    file.resize(len(file.content) + random.randrange(1000))
                case _:
                    file.sync()
                    versions.clear()
            versions.append(bytes(file.content))
        left = bytes(file.after_power_cut(random).content)
        assert len(left) in map(len, versions)
        for number, sector in enumerate(sectors(left)):
            start = number * SECTOR_BYTES
            seen = [version[start : start + len(sector)] for version in versions]
            assert sector in [part.ljust(len(sector), b"\0") for part in seen]

    @pytest.mark.parametrize("seed", SEEDS)
    def test_after_a_sync_everything_survives_unchanged(self, seed: int) -> None:
        random = Random(seed)
        file = CachedFile()
        for _ in range(30):
            file.write(random.randrange(4000), random.randbytes(random.randrange(2000)))
            if random.random() < 0.5:
                file.resize(random.randrange(6000))
            if random.random() < 0.3:
                file.sync()
                assert file.durable == file.content
                assert bytes(file.after_power_cut(random).content) == file.content

    def test_an_unsynced_size_may_survive_without_its_bytes(self) -> None:
        file = CachedFile()
        file.resize(1000)
        file.write(1000, b"x" * 100)
        left = cut(file)
        assert {len(data) for data in left} == {0, 1000, 1100}
        assert bytes(1100) in left
        assert bytes(1000) + b"x" * 100 in left

    def test_size_changes_survive_in_order(self) -> None:
        file = CachedFile(OLD)
        file.resize(700)
        file.resize(1500)
        assert set(cut(file)) == {OLD, OLD[:700], OLD[:700].ljust(1500, b"\0")}

    def test_a_truncation_survives_a_failed_sync_but_written_bytes_do_not(self) -> None:
        file = CachedFile(OLD)
        file.resize(700)
        file.write(1000, NEW)
        file.fail_sync()
        file.sync()
        assert set(cut(file)) == {OLD[:700].ljust(3000, b"\0")}

    def test_damage_is_one_bit_in_each_byte(self) -> None:
        file = CachedFile(OLD)
        file.damage(700, 3, Random(1))
        flipped = [(old ^ new).bit_count() for old, new in zip(OLD, file.content, strict=True)]
        assert flipped == [0] * 700 + [1] * 3 + [0] * 1297
        assert file.durable == file.content

    def test_damage_under_a_dirty_page_is_healed_by_the_sync(self) -> None:
        file = CachedFile(OLD)
        file.write(0, NEW)
        file.damage(700, 1, Random(1))
        assert file.content == NEW
        assert file.durable != OLD
        file.sync()
        assert file.durable == NEW

    def test_only_durable_bytes_are_damaged(self) -> None:
        file = CachedFile(OLD)
        file.resize(3000)
        file.damage(1999, 500, Random(1))
        assert file.content[2000:] == bytes(1000)
        file.resize(100)
        file.damage(50, 500, Random(1))
        assert len(file.content) == 100


class TestDirectory:
    def outcomes(self, *changes: Entries) -> list[dict[str, bytes]]:
        directory = CachedDirectory({"a": CachedFile(OLD), "b": CachedFile(NEW)})
        for entries in changes:
            directory.change(entries)
        cuts = [directory.after_power_cut(Random(seed)) for seed in SEEDS]
        return [{name: bytes(file.content) for name, file in left.files.items()} for left in cuts]

    def test_an_unsynced_creation_has_happened_or_not(self) -> None:
        assert {len(left) for left in self.outcomes({"c": CachedFile()})} == {2, 3}

    def test_an_unsynced_removal_has_happened_or_not(self) -> None:
        assert {tuple(left) for left in self.outcomes({"a": None})} == {("a", "b"), ("b",)}

    def test_a_rename_is_atomic(self) -> None:
        before, after = {"a": OLD, "b": NEW}, {"b": OLD}
        left = self.outcomes({"a": None, "b": CachedFile(OLD)})
        assert before in left
        assert after in left
        assert all(names in (before, after) for names in left)

    def test_a_renamed_file_is_not_lost_when_its_old_name_is_reused(self) -> None:
        file = CachedFile(OLD)
        left = self.outcomes({"a": None, "c": file}, {"a": CachedFile()}, {"c": None, "d": file})
        assert all(list(names.values()).count(OLD) == 1 for names in left)
        assert {"b": NEW, "a": b"", "d": OLD} in left
        assert {"b": NEW, "c": OLD} in left
        assert {"b": NEW, "a": OLD} in left

    def test_changes_of_different_names_survive_independently(self) -> None:
        left = self.outcomes({"a": None}, {"b": None, "c": CachedFile(NEW)}, {"d": CachedFile()})
        assert {"".join(names) for names in left} == {
            a + b + d for a in ("", "a") for b in ("b", "c") for d in ("", "d")
        }

    def test_synced_changes_have_happened(self) -> None:
        directory = CachedDirectory({"a": CachedFile(OLD)})
        directory.change({"a": None, "b": CachedFile(OLD)})
        directory.sync()
        assert all(list(directory.after_power_cut(Random(seed)).files) == ["b"] for seed in SEEDS)


def test_draws_include_outcomes_that_independent_coin_flips_would_miss() -> None:
    draws = [luck(Random(seed), 1000) for seed in SEEDS]
    assert [False] * 1000 in draws
    assert [True] * 1000 in draws
    assert any(draw == sorted(draw, reverse=True) and 0 < sum(draw) < 1000 for draw in draws)
    assert any(draw[0] and draw[-1] and not all(draw) for draw in draws)
