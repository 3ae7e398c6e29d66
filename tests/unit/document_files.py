"""Small PDFs and Word documents for tests, written by hand."""

from __future__ import annotations

import hashlib
import io
import zipfile

PICTURE = b"q 200 0 0 100 72 600 cm BI /W 1 /H 1 /CS /G /BPC 8 ID \x80 EI Q"
DRAWING = b"72 72 m 300 300 l S"
_PADDING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_PACKAGE = "http://schemas.openxmlformats.org/package/2006/"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_MAIN = "application/vnd.openxmlformats-officedocument.wordprocessingml"


def shown(*lines: tuple[float, float, str], size: float = 12) -> bytes:
    """What a page has for lines of Latin-1 at (x, y), in points from its bottom left corner."""
    escaped = ((x, y, words.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")) for x, y, words in lines)
    return "".join(f"BT /F1 {size} Tf {x} {y} Td ({words}) Tj ET\n" for x, y, words in escaped).encode("latin-1")


def pdf(*pages: bytes, password: str | None = None, title: str = "") -> bytes:
    """A PDF of pages of 612 by 792 points with these contents. With a password it is encrypted with RC4, 40 bits."""
    kids = " ".join(f"{5 + 2 * i} 0 R" for i in range(len(pages)))
    owner = _owner_entry(password or "")
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        f"<< /Title ({title}) >>".encode(),
    ]
    for i, content in enumerate(pages):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {6 + 2 * i} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>".encode()
        )
        data = content if password is None else _encrypted(content, _key(password, owner), 6 + 2 * i)
        objects.append(f"<< /Length {len(data)} >>\nstream\n".encode() + data + b"\nendstream")
    return _file(objects, None if password is None else _encryption(password, owner))


def _file(objects: list[bytes], encryption: str | None) -> bytes:
    body, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n".encode() + content + b"\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    more = f"/Encrypt {encryption} /ID [<00> <00>]" if encryption else "/Info 4 0 R"
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R {more} >>\nstartxref\n{len(body)}\n%%EOF\n"
    return body + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{trailer}".encode()


def _rc4(key: bytes, data: bytes) -> bytes:
    box, j = list(range(256)), 0
    for i in range(256):
        j = (j + box[i] + key[i % len(key)]) % 256
        box[i], box[j] = box[j], box[i]
    i, j, out = 0, 0, bytearray()
    for byte in data:
        i = (i + 1) % 256
        j = (j + box[i]) % 256
        box[i], box[j] = box[j], box[i]
        out.append(byte ^ box[(box[i] + box[j]) % 256])
    return bytes(out)


def _padded(password: str) -> bytes:
    return (password.encode() + _PADDING)[:32]


def _owner_entry(password: str) -> bytes:
    return _rc4(hashlib.md5(_padded(password)).digest()[:5], _padded(password))


def _key(password: str, owner: bytes) -> bytes:
    return hashlib.md5(_padded(password) + owner + b"\xff\xff\xff\xff" + b"\x00").digest()[:5]


def _encrypted(content: bytes, key: bytes, number: int) -> bytes:
    return _rc4(hashlib.md5(key + number.to_bytes(3, "little") + b"\0\0").digest()[:10], content)


def _encryption(password: str, owner: bytes) -> str:
    user = _rc4(_key(password, owner), _PADDING)
    return f"<< /Filter /Standard /V 1 /R 2 /O <{owner.hex()}> /U <{user.hex()}> /P -1 >>"


def docx(body: str, footnotes: str = "") -> bytes:
    """A Word document with this inside of <w:body>, and of <w:footnotes>."""
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/word/document.xml" ContentType="{_MAIN}.document.main+xml"/>'
        f'<Override PartName="/word/footnotes.xml" ContentType="{_MAIN}.footnotes+xml"/></Types>',
        "_rels/.rels": _relation("officeDocument", "word/document.xml"),
        "word/_rels/document.xml.rels": _relation("footnotes", "footnotes.xml"),
        "word/document.xml": f"<w:document {_W}><w:body>{body}<w:sectPr/></w:body></w:document>",
        "word/footnotes.xml": f"<w:footnotes {_W}>{footnotes}</w:footnotes>",
    }
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return made.getvalue()


def _relation(kind: str, target: str) -> str:
    return (
        f'<Relationships xmlns="{_PACKAGE}relationships">'
        f'<Relationship Id="rId1" Type="{_OFFICE}/{kind}" Target="{target}"/></Relationships>'
    )


def paragraph(inside: str) -> str:
    """A paragraph of WordprocessingML; text becomes a run."""
    return f"<w:p>{inside if inside.startswith('<') else run(inside)}</w:p>"


def run(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


def table(*rows: list[str]) -> str:
    cells = (
        "".join(f"<w:tc>{cell if cell.startswith('<') else paragraph(cell)}</w:tc>" for cell in row) for row in rows
    )
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"
