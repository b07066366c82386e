"""Documents by several clues: Chinese, stop words, endless clues, fusion, empty and broken indexes, a kept index."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.errors import DataError
from gruppo.search_state import Fault
from gruppo.tools.documents import ReadTool, SearchOrchestrator, SearchTool, document_tools, excerpt, telling
from gruppo.tools.search import BLOCK_BYTES, LARGE, NUM_BLOCKS, BM25Index, Passage, digest_of, terms

CHINESE = [
    Passage("1", "李明", "李明出生在杭州，后来在上海大学任教。"),
    Passage("2", "杭州", "杭州是浙江省的省会，西湖在杭州。"),
    Passage("3", "GPT4模型", "GPT4模型由一家公司在２０２３年发布。"),
    Passage("4", "東京", "東京は日本の首都です。カレーライス"),
    Passage("5", "서울", "서울은 대한민국의 수도이다."),
    Passage("6", "Hangzhou", "Hangzhou is the capital of Zhejiang."),
]


def ids(index: BM25Index, query: str, k: int = 10) -> list[str]:
    return [passage.id for passage in index.search(query, k)]


# ---- scripts without blanks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("李明出生在哪里？", "1"),
        ("李明", "1"),
        ("浙江的省会是什么", "2"),
        ("西湖", "2"),
        ("湖", "2"),
        ("gpt4", "3"),
        ("GPT4 2023", "3"),
        ("ＧＰＴ４", "3"),
        ("日本の首都", "4"),
        ("カレー", "4"),
        ("ｶﾚｰ", "4"),
        ("대한민국 수도", "5"),
        ("Hangzhou", "6"),
    ],
)
def test_questions_and_documents_of_any_script_find_each_other(query: str, first: str) -> None:
    assert ids(BM25Index(CHINESE), query)[0] == first


# Of each script without a case of its own above: a question, and the document that answers it.
SCRIPTS = {
    "Thai": ("เมืองหลวงของประเทศไทยคืออะไร", "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย"),
    "Lao": ("ນະຄອນຫຼວງຂອງລາວແມ່ນຫຍັງ", "ວຽງຈັນແມ່ນນະຄອນຫຼວງຂອງລາວ"),
    "Khmer": ("រាជធានីនៃប្រទេសកម្ពុជាជាអ្វី", "ភ្នំពេញជារាជធានីនៃប្រទេសកម្ពុជា"),
    "Burmese": ("မြန်မာနိုင်ငံ၏မြို့တော်", "နေပြည်တော်သည်မြန်မာနိုင်ငံ၏မြို့တော်ဖြစ်သည်"),
    "Hindi": ("भारत की राजधानी क्या है?", "भारत की राजधानी नई दिल्ली है।"),
    "Tamil": ("தமிழ்நாட்டின் தலைநகரம் எது?", "தமிழ்நாட்டின் தலைநகரம் சென்னை."),
    "Arabic": ("من هو مُحَمَّد", "محمد كاتب من بغداد"),
    "Hebrew": ("מה זה שָׁלוֹם?", "שלום היא מילה"),
    "Russian": ("КТО МЭР МОСКВЫ, где ёлка?", "Мэр Москвы сказал, что елка стоит."),
    "Greek": ("ΟΔΟΣ ΕΛΛΆΔΑΣ", "η οδος της Ελλάδας"),
    "Turkish": ("İSTANBUL valisi", "İstanbul valisi Davut Gül."),
    "German": ("große STRASSE", "Die grosse Straße"),
    "Vietnamese": ("Thủ đô của Việt Nam là gì?", "Hà Nội là thủ đô của Việt Nam."),
}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("form_of_documents", ["NFC", "NFD"])
def test_every_script_finds_its_document(form: str, form_of_documents: str) -> None:
    documents = {name: unicodedata.normalize(form_of_documents, text) for name, (_, text) in SCRIPTS.items()}
    index = BM25Index([*CHINESE, *(Passage(name, "", text) for name, text in documents.items())])
    for name, (question, _) in SCRIPTS.items():
        assert ids(index, unicodedata.normalize(form, question))[0] == name
    assert ids(index, unicodedata.normalize(form, "대한민국 수도"))[0] == "5"


def test_signs_are_part_of_words() -> None:
    assert terms("राजधानी हिन्दी") == ["राजधानी", "हिन्दी"] and terms("ไทย") == ["ไท", "ทย"]


def test_a_character_is_found_wherever_it_stands() -> None:
    index = BM25Index(
        [Passage("a", "", "湖山"), Passage("b", "", "西湖"), Passage("c", "", "湖"), Passage("d", "", "江")]
    )
    assert sorted(ids(index, "湖")) == ["a", "b", "c"]
    assert [passage.id for passage in BM25Index(CHINESE).titled("东京" + "x")] == []
    assert [passage.id for passage in BM25Index(CHINESE).titled("李明")] == ["1"]


def test_other_text_has_the_words_it_had() -> None:
    assert terms("Café a_b, the 3rd!") == ["cafe", "a", "b", "the", "3rd"]
    assert terms("杭州在哪里") == ["杭州", "州在", "在哪", "哪里"] and terms("湖") == ["湖"]


# ---- clues ----------------------------------------------------------------------------------------------------------


def test_documents_of_several_clues_come_before_those_of_one() -> None:
    index = BM25Index([Passage("a", "", "red fox"), Passage("b", "", "red den"), Passage("c", "", "grey den")])
    found = SearchOrchestrator(index).search(["red", "den"])
    assert [hit.id for hit in found.hits][0] == "b" and {hit.id for hit in found.hits} == {"a", "b", "c"}
    assert found.hits[0].score == pytest.approx(1 / 61 + 1 / 62, abs=1 / 500) and not found.faults


def test_the_order_of_clues_and_passages_changes_nothing() -> None:
    passages = [Passage(str(number), "", f"red fox {number % 3} den {number % 5}") for number in range(30)]
    clues = ["fox 1", "den 4", "red 2"]
    forwards = SearchOrchestrator(BM25Index(passages)).search(clues)
    assert forwards == SearchOrchestrator(BM25Index(reversed(passages))).search(clues)
    assert forwards.hits == SearchOrchestrator(BM25Index(passages)).search(clues[::-1]).hits


def test_documents_of_the_same_text_come_once_and_the_list_is_bounded() -> None:
    index = BM25Index(Passage(f"{number:03}", "", "red  fox" if number % 2 else "red fox") for number in range(50))
    assert len(SearchOrchestrator(index).search(["red fox"]).hits) == 1
    index = BM25Index(Passage(f"{number:03}", "", f"red {number}") for number in range(50))
    assert len(SearchOrchestrator(index, limit=4).search(["red"]).hits) == 4


def test_a_copy_is_the_document_that_it_copies_whichever_clue_finds_it(tmp_path: Path) -> None:
    passages = [Passage("b", "fox", "It sleeps."), Passage("a", "den", "It  sleeps."), Passage("c", "fox", "It runs.")]
    passages += [Passage("d", "lone fox", ""), Passage("e", "lone wolf", "")]
    path = tmp_path / "kept.index"
    BM25Index(passages, path).close()
    for index in (BM25Index(passages), BM25Index.open(path)):
        search = SearchOrchestrator(index)
        assert [hit.id for hit in search.search(["den"]).hits] == ["a"]
        assert {hit.id for hit in search.search(["fox"]).hits} == {"a", "c", "d"}
        (once, both) = (search.search([clue]).hits[0].score for clue in ("den", "den fox"))
        assert once == both, "a copy beside its original counts once"
        assert [hit.id for hit in search.search(["wolf"]).hits] == ["e"], "no text is no copy"
        index.close()


@pytest.mark.parametrize(
    ("clue", "fault"),
    [
        ("", Fault.empty),
        (" \n ?!\x00😀", Fault.empty),
        ("what is the of and", Fault.stop_words),
        ("请问这是什么", Fault.stop_words),
        ("what's it, and isn’t he who they'd been themselves?", Fault.stop_words),
        ("ＷＨＡＴ ｉｓ the 的 of 是", Fault.stop_words),
        ("請問我們是誰", Fault.stop_words),
        ("word " * 2_000, Fault.too_long),
        ("杭" * 10_000, Fault.too_long),
        ("FOX, red the", Fault.repeated),
        ("ｆｏｘ réd", Fault.repeated),
    ],
)
def test_a_clue_that_tells_nothing_is_not_searched_for(clue: str, fault: Fault) -> None:
    index = BM25Index([*CHINESE, Passage("9", "", "the red fox is what it is")])
    found = SearchOrchestrator(index).search(["red fox", clue])
    assert [hit.id for hit in found.hits] == ["9"]
    assert [faulty.fault for faulty in found.faults] == [fault] and len(found.faults[0].clue) <= 120


def test_too_many_clues_are_told() -> None:
    found = SearchOrchestrator(BM25Index(CHINESE), max_clues=2).search([f"clue{number}" for number in range(4)])
    assert [faulty.fault for faulty in found.faults] == [Fault.too_many] * 2


def test_a_word_made_of_stop_characters_still_tells() -> None:
    assert telling("O'Brien won't sing can't") == ["o", "brien", "sing"]
    assert telling("多样") == ["多样"] and telling("为什么") == [] and telling("Who was the mayor") == ["mayor"]


@given(st.lists(st.text(max_size=30), max_size=5))
def test_any_clues_are_safe_and_repeat(clues: list[str]) -> None:
    orchestrator = SearchOrchestrator(BM25Index(CHINESE))
    assert orchestrator.search(clues) == orchestrator.search(clues)


def test_an_empty_index_finds_nothing() -> None:
    found = SearchOrchestrator(BM25Index([])).search(["red fox", "西湖"])
    assert not found.hits and not found.faults


# ---- tools ----------------------------------------------------------------------------------------------------------


def test_the_tools_answer_in_json_and_name_what_is_wrong() -> None:
    search, read = document_tools(BM25Index(CHINESE))
    assert isinstance(search, SearchTool) and isinstance(read, ReadTool)
    found = json.loads(asyncio.run(search.call({"clues": ["西湖", "the"]})).output)
    assert [hit["id"] for hit in found["hits"]] == ["2"]
    assert found["faults"] == [{"clue": "the", "fault": "only stop words"}]
    assert "argument 'clues'" in asyncio.run(search.call({"clues": "西湖"})).error
    assert asyncio.run(read.call({"id": "2"})).output == CHINESE[1].text
    assert asyncio.run(read.call({"id": "nine"})).error == "no document 'nine'"


def test_of_a_long_text_the_telling_piece_is_shown() -> None:
    text = "filler " * 500 + "the red fox sleeps " + "filler " * 500
    assert "red fox" in excerpt(text, ["fox"], 100) and len(excerpt(text, ["fox"], 100)) <= 100
    assert excerpt(text, [], 50).startswith("filler") and excerpt("short", ["x"], 50) == "short"
    index = BM25Index([Passage("long", "", text)])
    assert "red fox" in asyncio.run(ReadTool(index, 200).call({"id": "long", "about": "where is the fox"})).output


# ---- the index ------------------------------------------------------------------------------------------------------


def test_an_index_on_disk_is_memory_mapped(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    BM25Index(CHINESE, path).close()
    index = BM25Index.open(path)
    assert ids(index, "西湖")[0] == "2" and index["2"] == CHINESE[1] and not list(tmp_path.glob("*building*"))
    assert str(path) in Path("/proc/self/maps").read_text()
    index.close()


def test_a_kept_index_is_used_again_until_a_file_changes(tmp_path: Path) -> None:
    texts, kept = tmp_path / "texts", tmp_path / "kept"
    texts.mkdir()
    (texts / "a.txt").write_text("red fox")
    BM25Index.kept(texts, kept).close()
    (file,) = kept.iterdir()
    before = file.stat().st_mtime_ns
    BM25Index.kept(texts, kept).close()
    assert file.stat().st_mtime_ns == before
    file.write_bytes(file.read_bytes()[:5000])  # cut by a kill of another program
    assert ids(BM25Index.kept(texts, kept), "fox") == ["a.txt"]
    (texts / "b.txt").write_text("grey fox")
    assert sorted(ids(BM25Index.kept(texts, kept), "fox")) == ["a.txt", "b.txt"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(vars(CHINESE[1])))
    assert ids(BM25Index.kept(rows, kept), "西湖") == ["2"]


@pytest.mark.parametrize("size", [0, 100, 4096, -4096, -1])
def test_a_cut_index_is_made_anew(tmp_path: Path, size: int) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(40):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"red fox {number} " * 30)
    whole = BM25Index.kept(tmp_path / "texts", tmp_path / "kept")
    found = ids(whole, "fox 7")
    whole.close()
    (file,) = (tmp_path / "kept").iterdir()
    file.write_bytes(file.read_bytes()[:size])
    again = BM25Index.kept(tmp_path / "texts", tmp_path / "kept")
    assert ids(again, "fox 7") == found and len(again) == 40


@pytest.mark.parametrize("place", [0, 20, 4096 + 7, 0.3, 0.6, -4096, -5])
def test_a_damaged_index_is_told_and_made_anew(tmp_path: Path, place: float) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(40):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"red fox {number} " * 30)
    BM25Index.kept(tmp_path / "texts", tmp_path / "kept").close()
    (file,) = (tmp_path / "kept").iterdir()
    whole = bytearray(file.read_bytes())
    at = int(place * len(whole)) if isinstance(place, float) else place % len(whole)
    whole[at] ^= 1
    file.write_bytes(whole)
    with pytest.raises(DataError, match="damaged"):
        BM25Index.open(file)
    assert ids(BM25Index.kept(tmp_path / "texts", tmp_path / "kept"), "7") == ["7.txt"]
    BM25Index.open(file).close()


def test_a_large_index_is_looked_at_in_places_from_its_first_block_to_its_last(tmp_path: Path) -> None:
    file, size = tmp_path / "large", 4 * NUM_BLOCKS * BLOCK_BYTES + 100
    with file.open("w+b") as large:
        large.truncate(size)
        before = digest_of(large, size, "large")
        for changes, at in ((True, 0), (True, size - 1), (False, BLOCK_BYTES + 1)):
            large.seek(at)
            large.write(b"x")
            assert (digest_of(large, size, "large") != before) == changes
            large.seek(at)
            large.write(b"\0")
        large.seek(size // 3)
        large.write(b"x" * 5 * BLOCK_BYTES)
        assert digest_of(large, size, "large") != before, "a hole that is wider than the distance of the places"
        others = [(size - 1, "large"), (size + 1, "large"), (size, "other")]
        assert len({before, *(digest_of(large, *other) for other in others)}) == 4


def test_an_index_under_the_name_of_another_is_made_anew(tmp_path: Path) -> None:
    for name in ("foxes", "owls"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(f"red {name}")
        BM25Index.kept(tmp_path / name, tmp_path / "kept").close()
    one, other = (tmp_path / "kept").iterdir()
    one.write_bytes(other.read_bytes())
    for name in ("foxes", "owls"):
        assert BM25Index.kept(tmp_path / name, tmp_path / "kept")["a.txt"].text == f"red {name}"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"[" * 200_000, "not JSON"),
        (b'{"id": ' + b"9" * 6_000 + b"}", "not JSON"),
        (b'{"id": 1, "title": "", "text": ""}', "strings id, title and text"),
        (b"\xff", "utf-8"),
        (b'{"id": "1", "title": "", "text": ""}\n' * 2, "rows.jsonl:2: passage id '1' is not unique: line 1"),
    ],
)
def test_a_damaged_collection_is_told(tmp_path: Path, row: bytes, said: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(row)
    with pytest.raises(DataError, match=said):
        BM25Index.kept(file, tmp_path / "kept")


def test_a_mark_of_the_encoding_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfred fox")
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b'\xef\xbb\xbf{"id": "1", "title": "", "text": ""}\n')
    assert BM25Index.from_folder(tmp_path)["a.txt"].text == "red fox" and BM25Index.from_jsonl(rows)["1"].text == ""
    with pytest.raises(DataError, match="the index can't be written"):
        BM25Index.kept(tmp_path, rows)


def test_a_huge_document_is_excerpted_in_no_time() -> None:
    started = time.process_time()
    assert "red fox" in excerpt("word lorem ipsum " * 100_000 + "RED FOX".lower(), ["red", "fox"], 300)
    assert time.process_time() - started < 2


def test_what_is_no_index_is_named(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    with sqlite3.connect(old) as database:
        database.execute("CREATE TABLE passages(id)")
    database.close()
    for path in (old, tmp_path / "none.db"):
        with pytest.raises(DataError, match="not a search index"):
            BM25Index.open(path)
    with pytest.raises(DataError, match="can't be written"):
        BM25Index(CHINESE, tmp_path / "no" / "folder.db")


def test_half_a_surrogate_pair_is_no_crash() -> None:
    index = BM25Index([Passage("\ud800", "\ud800", "fox \udfff")])
    assert BM25Index([Passage("!", "", "fox"), Passage("\ud800", "", "fox")]).original_id("\ud800") == "!"
    assert ids(index, "fox \ud800") == ["?"] and index["\ud800"].text == "fox ?" and index.titled("\ud800")


def test_a_large_index_leaves_common_words_out_and_is_fast() -> None:
    index = BM25Index(Passage(f"{number:06}", "", f"common word{number} thing{number % 50}") for number in range(LARGE))
    started = time.process_time()
    assert ids(index, "common word77", 3) == ["000077"] and len(ids(index, "common", 3)) == 3
    for number in range(64):
        index.search(f"common thing{number % 50} word{number}", 10)
    assert time.process_time() - started < 2
