"""Documents: text, pages, paragraphs and places of PDF, Word, HTML and plain files, and what is refused."""

from __future__ import annotations

import pickle

import pytest
from document_files import DRAWING, PICTURE, docx, paragraph, pdf, run, shown, table

from sgl.documents import DocumentError, read
from sgl.lang.backends.apis.provider_sdk import MissingPackageError
from sgl.lang.errors import BadValueError

LETTER = pdf(
    shown((72, 700, "The well-known firm Nordlys"), (72, 686, "asks for ten desks.")),
    shown((72, 700, "We pay on May 2nd.")),
    title="A letter",
)


def test_pdf_pages_places_and_metadata():
    document = read(LETTER, source="letter.pdf")
    assert document.text == "The well-known firm Nordlys\nasks for ten desks.\n\nWe pay on May 2nd."
    assert [(page.number, page.width, page.height) for page in document.pages] == [(1, 612, 792), (2, 612, 792)]
    assert document.pages[0].end == document.pages[1].start == document.text.index("We pay")
    assert document.kind == "pdf" and document.metadata["title"] == "A letter"
    place = document.place((document.text.index("May"), document.text.index("May") + 7))
    assert (place.page, place.last_page, place.paragraph, str(place)) == (2, 2, 1, "letter.pdf, page 2")
    (box,) = place.boxes
    assert box.page == 2 and box.left == pytest.approx(72 + 12 * 4.25, abs=12)
    assert box.bottom < 700 < box.top and box.right - box.left == pytest.approx(48, abs=8)


def test_a_place_has_a_box_for_each_line_and_may_cover_pages():
    document = read(LETTER)
    place = document.place((document.text.index("Nordlys"), document.text.index("pay")))
    assert [box.page for box in place.boxes] == [1, 1, 2] and (place.page, place.last_page) == (1, 2)
    assert place.boxes[0].bottom > place.boxes[1].bottom and str(place) == "<bytes>, pages 1 to 2"
    for span in ((3, 3), (-1, 2), (0, len(document.text) + 1)):
        with pytest.raises(BadValueError, match="no span"):
            document.place(span)


def test_every_box_is_on_its_character():
    document = read(pdf(shown((72, 700, "ab cd"), (200, 700, "ef"), (72, 600, "gh"))))
    assert document.text == "ab cd ef\n\ngh"
    lefts = {one: document.place((i, i + 1)).boxes for i, one in enumerate(document.text) if not one.isspace()}
    assert round(lefts["a"][0].left) == 72 and round(lefts["e"][0].left) == 200
    assert lefts["g"][0].top < 620 < lefts["a"][0].bottom
    assert document.place((2, 3)).boxes == ()  # a space has no ink


def test_pdf_lines_hyphens_ligatures_and_exponents():
    words = ("A classi-", "fied and a self-", "made man of self-made fame, born in Baden-", "Baden.")
    lines = [(72, 700 - 14 * i, line) for i, line in enumerate(words)]
    document = read(pdf(shown(*lines) + shown((300, 700, "x")) + shown((306, 704, "2"), size=7)))
    assert document.text.startswith("A classified and a self-made man of self-made fame, born in Baden-Baden.")
    assert document.text.endswith("x2")


def test_pdf_paragraphs_are_where_lines_are_far_apart():
    lines = [(72, 700 - 14 * i, f"Line {i}.") for i in range(3)] + [(72, 640, "Next.")]
    assert [read(pdf(shown(*lines))).text[start:end] for start, end in read(pdf(shown(*lines))).paragraphs] == [
        "Line 0.\nLine 1.\nLine 2.",
        "Next.",
    ]


@pytest.mark.parametrize(("content", "what"), [(PICTURE, "picture"), (DRAWING, "drawing")])
def test_pages_that_are_pictures_are_named_or_skipped(content, what):
    scanned = pdf(shown((72, 700, "One.")), b"", content)
    with pytest.raises(DocumentError, match=rf"scan\.pdf: no text on page 3; it is a {what}.*OCR") as raised:
        read(scanned, source="scan.pdf")
    assert (raised.value.source, raised.value.page) == ("scan.pdf", 3)
    assert pickle.loads(pickle.dumps(raised.value)).page == 3
    document = read(scanned, on_pictures="skip")
    assert document.skipped_pages == (3,) and len(document.pages) == 3 and document.text.strip() == "One."
    with pytest.raises(DocumentError, match="1 of its 2 pages more"):
        read(pdf(content, content))


def test_encrypted_pdf():
    secret = pdf(shown((72, 700, "Top secret.")), password="sesame")
    assert read(secret, password="sesame").text == "Top secret."
    with pytest.raises(DocumentError, match=r'it is encrypted; read it with read\(path, password="'):
        read(secret)
    with pytest.raises(DocumentError, match="this password does not open it"):
        read(secret, password="wrong")


def test_damaged_empty_and_huge_files(tmp_path):
    path = tmp_path / "bill.pdf"
    for data, message in (
        (b"%PDF-1.4 nothing", r"bill\.pdf: it is damaged, or not a PDF"),
        (b"", r"bill\.pdf: it is empty: it has no bytes"),
        (pdf(b""), r"bill\.pdf: it has no text"),
    ):
        path.write_bytes(data)
        with pytest.raises(DocumentError, match=message):
            read(path)
    with pytest.raises(DocumentError, match=r"it has 3 bytes; read\(path, max_bytes=3\) allows that"):
        read(b"abc", kind="text", max_bytes=2)
    with pytest.raises(DocumentError, match="bytes when unpacked"):
        read(docx(paragraph("a" * 9000)), max_bytes=9000)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.pdf")


@pytest.mark.parametrize("data", [b"PK\x03\x04broken", docx(paragraph("a"))[:-30], docx("<w:p>"), b"hello"])
def test_damaged_word_documents(data):
    with pytest.raises(DocumentError, match="it is damaged, or not a Word document"):
        read(data, kind="docx")
    with pytest.raises(DocumentError, match="encrypted, or an old"):
        read(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), kind="docx")


def test_word_paragraphs_tables_and_notes():
    tracked = f"<w:ins>{run('in')}</w:ins><w:del><w:r><w:delText>out</w:delText></w:r></w:del>{run(chr(160) + 'kept')}"
    control = f"<w:sdt><w:sdtContent>{paragraph('In a control')}</w:sdtContent></w:sdt>"
    link = f"<w:hyperlink>{run('a link')}</w:hyperlink><w:r><w:br/><w:t>next line</w:t></w:r>"
    inner = table(["deep", "er"]) + paragraph("")
    body = paragraph(tracked) + control + table(["Name", "Price"], ["", ""], [inner, "5"]) + paragraph(link)
    document = read(docx(body, f'<w:footnote w:id="2">{paragraph("A note.")}</w:footnote>'))
    assert [document.text[start:end] for start, end in document.paragraphs] == [
        "in kept",
        "In a control",
        "Name | Price\ndeep er | 5",
        "a link\nnext line",
        "A note.",
    ]
    place = document.place((document.text.index("deep"), document.text.index("deep") + 4))
    assert (place.page, place.paragraph, place.boxes, str(place)) == (None, 2, (), "<bytes>, paragraph 3")


def test_word_text_boxes_are_read_once():
    box = f"<w:r><w:txbxContent>{paragraph('Boxed')}</w:txbxContent></w:r>"
    mc = "http://schemas.openxmlformats.org/markup-compatibility/2006"
    both = f'<mc:AlternateContent xmlns:mc="{mc}"><mc:Choice>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback>'
    anchored = paragraph(f"{run('Around')}{both}</mc:AlternateContent>")
    assert read(docx(anchored)).text == "Around\n\nBoxed"
    assert read(docx(table([anchored, "b"]))).text == "Around Boxed | b"


PAGE = b"""<!doctype html><html lang="en"><head><title> A  page </title><meta name="author" content="Ada"></head>
<body><h1>Title</h1><p>One <b>bold</b>
word&nbsp;here<br>second line<p>Soft&shy;ly<script>x()</script>
<table><caption>Prices</caption><tr><th>Name<th>Price<tr><td><p>Desk</p><p>oak</p><td>5<tr><td><td></table>
<pre>a
  b</pre><div>loose<div>inner</div>tail</div><ul><li>first<li>second</ul><p hidden>no</body></html>"""


def test_html_paragraphs_tables_and_metadata():
    document = read(PAGE)
    assert [document.text[start:end] for start, end in document.paragraphs] == [
        "Title",
        "One bold word here\nsecond line",
        "Softly",
        "Prices\nName | Price\nDesk oak | 5",
        "a\n  b",
        "loose",
        "inner",
        "tail",
        "first",
        "second",
    ]
    assert document.metadata == {"title": "A page", "language": "en", "author": "Ada"}
    assert document.pages == () and document.place((0, 5)).paragraph == 0


def test_html_tables_that_arrange_a_page_are_paragraphs_and_depth_is_no_limit():
    page = "<table><tr><td><p>Left<p>more<td><table><tr><td>1<td>2</table></table>"
    assert read(page.encode(), kind="html").text == "Left\n\nmore\n\n1 | 2"
    assert read(("<div>" * 20_000 + "deep").encode(), kind="html").text == "deep"


@pytest.mark.parametrize("declared", ['<meta charset="latin-1">', '<meta content="text/html; charset=ISO-8859-1">'])
def test_html_is_read_by_the_encoding_that_it_declares(declared):
    assert read(f"<html>{declared}<p>caf\u00e9".encode("latin-1")).text == "caf\u00e9"


def test_plain_text_pages_and_encodings(tmp_path):
    path = tmp_path / "rfc.txt"
    path.write_bytes(b"One.\r\n\r\nTwo.\r\n\x0cThree.\r\n\x0c\n")
    document = read(path)
    assert document.text == "One.\n\nTwo.\n\x0cThree.\n\x0c\n" and [page.number for page in document.pages] == [1, 2]
    assert document.place((document.text.index("Three"), document.text.index("Three") + 5)).page == 2
    assert [document.text[start:end] for start, end in document.paragraphs] == ["One.", "Two.", "Three."]
    assert read("a\u20ac".encode("utf-16"), kind="text").text == "a\u20ac"
    with pytest.raises(DocumentError, match=r'it is not utf-8: byte 3 is 0xe9; .*encoding="cp1252"'):
        read(b"caf\xe9", kind="text")
    assert read(b"caf\xe9", kind="text", encoding="cp1252").text == "caf\u00e9"
    with pytest.raises(DocumentError, match="'utf-99' is not an encoding"):
        read(b"a", kind="text", encoding="utf-99")


def test_kinds_are_known_by_ending_or_content(tmp_path):
    path = tmp_path / "page"
    path.write_bytes(PAGE)
    assert read(path).kind == "html" and read(docx(paragraph("a"))).kind == "docx"
    path.write_bytes(b"plain")
    with pytest.raises(DocumentError, match=r'page: it is no PDF, \.docx or HTML; .*kind="text"'):
        read(path)
    for options in ({"kind": "word"}, {"on_pictures": "ocr"}):
        with pytest.raises(BadValueError, match="give"):
            read(b"a", **options)


@pytest.mark.parametrize(
    ("data", "package"), [(LETTER, "pypdfium2"), (docx(paragraph("a")), "docx"), (PAGE, "selectolax")]
)
def test_a_missing_package_is_named_with_the_command(monkeypatch, data, package):
    def refuse(name, *args, **options):
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **options)

    real = __import__("importlib").import_module
    monkeypatch.setattr("importlib.import_module", refuse)
    with pytest.raises(MissingPackageError, match=rf"'{package}': pip install 'sgl\[documents\]'"):
        read(data)


def test_documents_are_pickled_and_short_in_print():
    document = read(LETTER, source="letter.pdf")
    assert pickle.loads(pickle.dumps(document)) == document
    assert repr(document) == "<Document letter.pdf: pdf, 2 pages, 2 paragraphs, 67 characters>"


def test_what_is_no_file_is_refused_by_name(tmp_path):
    with pytest.raises(DocumentError, match="it is a folder; read its files"):
        read(tmp_path)
    for given in (None, 5, bytearray(b"text"), ""):
        with pytest.raises(BadValueError, match="give the path of a file, or its bytes"):
            read(given)
    for span in (None, 5, "ab", (0.5, 2)):
        with pytest.raises(BadValueError, match="no span"):
            read(LETTER).place(span)
