"""Reads the data packages: emoji names, icon sets, clip art and parallel terms.

Only sources whose licence allows redistribution under attribution are named here; LICENSES.md
beside the recipe gives each one's licence. Emojione is read for evaluation alone.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .records import LANGUAGES, MAX_KEYWORDS, Concept, Work, plain

EMOJI_STYLES = {
    "noto": "noto",
    "notov1": "noto-v1",
    "twemoji": "twemoji",
    "fluent": "fluent-emoji-flat",
    "fluent3d": "fluent-emoji",
    "fluenthc": "fluent-emoji-high-contrast",
    "fxemoji": "fxemoji",
    "emojione": "emojione",
}
# Sets without a code point map of their own, and the set whose map has the same names
# (fxemoji writes them without hyphens).
_NAMED_LIKE = {
    "emojione": "twemoji",
    "notov1": "noto",
    "fluent3d": "fluent-emoji-flat",
    "fxemoji": "noto",
}
EVALUATION_ONLY = frozenset({"emojione"})


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def svg_document(body: dict[str, Any], icon_set: dict[str, Any]) -> str:
    """Wraps an Iconify body into a whole SVG document drawn in black."""
    width = body.get("width", icon_set.get("width", 16))
    height = body.get("height", icon_set.get("height", 16))
    box = f"{body.get('left', 0)} {body.get('top', 0)} {width} {height}"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box}" width="{width}" height="{height}" color="#000">{body["body"]}</svg>'
    )


def _annotations(work: Work, language: str) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    for package, root in (
        ("cldr-annotations-full/annotations", "annotations"),
        ("cldr-annotations-derived-full/annotationsDerived", "annotationsDerived"),
    ):
        path = work.npm / package / language / "annotations.json"
        if path.exists():
            found.update(_json(path)[root]["annotations"])
    return {text.replace("\ufe0f", ""): entry for text, entry in found.items()}


def emoji_key(code_points: str) -> str:
    """Identity of an emoji over all packages: code points without the variation selector."""
    return "-".join(part for part in code_points.lower().split("-") if part != "fe0f")


def _labels(
    entries: dict[str, dict[str, dict[str, list[str]]]], text: str
) -> tuple[dict[str, str], dict[str, list[str]]]:
    names: dict[str, str] = {}
    keywords: dict[str, list[str]] = {}
    for language in LANGUAGES:
        entry = entries[language].get(text)
        if entry and "tts" in entry:
            names[language] = entry["tts"][0]
            words = [word for word in entry.get("default", []) if word != names[language]]
            keywords[language] = words[:MAX_KEYWORDS]
    return names, keywords


def emoji(work: Work) -> tuple[list[Concept], list[Concept]]:
    """Emoji with their CLDR names, and CLDR's other annotated characters as terms."""
    entries = {language: _annotations(work, language) for language in LANGUAGES}
    concepts = []
    seen = set()
    for record in _json(work.npm / "emoji-datasource-google" / "emoji.json"):
        code_points = record["unified"]
        text = "".join(chr(int(part, 16)) for part in code_points.split("-")).replace("\ufe0f", "")
        seen.add(text)
        names, keywords = _labels(entries, text)
        if "en" in names:
            key = emoji_key(code_points)
            concepts.append(Concept("emoji", key, record["subcategory"], names, keywords))
    terms = []
    for text in entries["en"]:
        names, keywords = _labels(entries, text)
        if text not in seen and len(text) == 1 and len(names) > 1:
            terms.append(Concept("term", f"sign:{ord(text):04x}", "sign", names, keywords))
    return concepts, terms


def emoji_pictures(work: Work, keys: dict[str, int]) -> Iterator[tuple[int, str, str]]:
    """Yields (concept, style, SVG) of every emoji font, one picture a concept and font."""
    for style, package in EMOJI_STYLES.items():
        icon_set = _json(work.icons / package / "icons.json")
        characters = _json(work.icons / _NAMED_LIKE.get(style, package) / "chars.json")
        if style == "fxemoji":
            characters = {code: name.replace("-", "") for code, name in characters.items()}
        done = set()
        for code_points, name in characters.items():
            concept = keys.get(emoji_key(code_points))
            body = icon_set["icons"].get(name)
            if concept is not None and body is not None and concept not in done:
                done.add(concept)
                yield concept, style, svg_document(body, icon_set)


@dataclass(frozen=True)
class IconSet:
    """An icon set: which names to take, and how to read a concept's name from one."""

    style: str
    package: str
    keep: Callable[[str], bool]
    name: Callable[[str], str]
    tags: dict[str, list[str]]


def _without(*endings: str, holding: tuple[str, ...] = ()) -> Callable[[str], bool]:
    return lambda name: not name.endswith(endings) and not any(part in name for part in holding)


def _ending(ending: str) -> Callable[[str], bool]:
    return lambda name: name.endswith(ending)


def _same(name: str) -> str:
    return name


def _cut(pattern: str) -> Callable[[str], str]:
    return lambda name: re.sub(pattern, "", name)


def icon_sets(work: Work) -> list[IconSet]:
    """The icon sets in the order in which their pictures are packed."""
    tabler = _json(work.npm / "@tabler" / "icons" / "icons.json")
    brands = {name for name, entry in tabler.items() if entry.get("category") == "Brand"}
    tabler_ends = ("-filled", "-off")
    lucide = _json(work.npm / "lucide-static" / "tags.json")
    mdi = {entry["name"]: entry for entry in _json(work.npm / "@mdi" / "svg" / "meta.json")}
    mdi_ends = ("-outline", "-off", "-variant")
    ph_ends = ("-bold", "-fill", "-light", "-thin", "-duotone", "-logo")
    number = _cut(r"-\d+$")
    return [
        IconSet(
            "tabler",
            "tabler",
            lambda n: n in tabler and n not in brands and not n.startswith("brand-") and not n.endswith(tabler_ends),
            _same,
            {name: entry["tags"] for name, entry in tabler.items()},
        ),
        IconSet("lucide", "lucide", lambda n: True, _same, lucide),
        IconSet(
            "mdi",
            "mdi",
            lambda n: n in mdi and "Brand / Logo" not in mdi[n]["tags"] and not n.endswith(mdi_ends),
            _same,
            {name: entry["aliases"] + [tag for tag in entry["tags"] if "/" not in tag] for name, entry in mdi.items()},
        ),
        IconSet("ph", "ph", _without(*ph_ends), _same, {}),
        IconSet(
            "material",
            "material-symbols",
            _without("-outline", "-rounded", "-sharp", "-outline-rounded", "-outline-sharp"),
            _same,
            {},
        ),
        IconSet("fluenticon", "fluent", _ending("-24-regular"), _cut(r"-24-regular$"), {}),
        IconSet("fluentcolor", "fluent-color", _ending("-24"), _cut(r"-24$"), {}),
        IconSet(
            "bootstrap",
            "bi",
            _without("-fill", holding=("filetype", "-wifi-off")),
            _same,
            {},
        ),
        IconSet("carbon", "carbon", _without(holding=("logo-", "watson", "ibm")), _same, {}),
        IconSet("iconoir", "iconoir", _without("-solid"), _same, {}),
        IconSet("mingcute", "mingcute", _ending("-fill"), _cut(r"(-\d+)?-fill$"), {}),
        IconSet(
            "healthicons",
            "healthicons",
            _without("-24px", "-outline", "-negative"),
            _same,
            {},
        ),
        IconSet("flatcolor", "flat-color-icons", lambda n: True, number, {}),
        IconSet("hugeicons", "hugeicons", lambda n: True, number, {}),
        IconSet("iconpark", "icon-park", lambda n: True, _cut(r"-(one|two|three|four)$"), {}),
        IconSet("maki", "maki", _without("-11"), _same, {}),
        IconSet("temaki", "temaki", lambda n: True, number, {}),
        IconSet("unicons", "uil", lambda n: True, _cut(r"-alt$"), {}),
        IconSet("tdesign", "tdesign", _without("-filled", holding=("logo-",)), number, {}),
        IconSet("meteocons", "meteocons", _without("-fill"), _same, {}),
        IconSet("medical", "medical-icon", _without(holding=("i-",)), _same, {}),
    ]


def icons(work: Work) -> Iterator[tuple[Concept, str, str]]:
    """Yields (concept, style, SVG) of every usable icon."""
    for icon_set in icon_sets(work):
        data = _json(work.icons / icon_set.package / "icons.json")
        for identifier, body in data["icons"].items():
            name = plain(icon_set.name(identifier))
            if body.get("hidden") or not icon_set.keep(identifier) or len(name) < 2:
                continue
            tags = [
                plain(tag)
                for tag in map(str, icon_set.tags.get(identifier, []))
                if len(tag) < 30 and not re.fullmatch(r"[\d.]+", tag)
            ]
            concept = Concept(
                "icon",
                f"{icon_set.style}:{identifier}",
                icon_set.style,
                {"en": name},
                {"en": tags[:12]},
            )
            yield concept, icon_set.style, svg_document(body, data)


_CLIP_SKIPPED = re.compile(r"/(stars|themes|callouts|flowchart|logos|flags)/")
_CLIP_TAGS_SKIPPED = {"hash", "unsorted", "theme", "magick"}
_PUBLIC_DOMAIN = (
    "creativecommons.org/licenses/publicdomain",
    "web.resource.org/cc/publicdomain",
    "public domain",
)


def clip_art(work: Work) -> Iterator[tuple[Concept, str]]:
    """Yields (concept, SVG) of Open Clip Art that is titled, tagged and public domain."""
    for path in sorted(work.openclipart.rglob("*.svg"), key=str):
        if _CLIP_SKIPPED.search(str(path)) or path.stat().st_size > 600_000:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        title = re.search(r"<dc:title>\s*(.*?)\s*</dc:title>", text, re.DOTALL)
        tags = [tag.lower() for tag in re.findall(r"<rdf:li>\s*(.*?)\s*</rdf:li>", text, re.DOTALL)]
        tags = [tag for tag in tags if tag and len(tag) < 25 and tag not in _CLIP_TAGS_SKIPPED and "<" not in tag]
        if not title or not tags or "gramastar" in title.group(1) or "<" in title.group(1):
            continue
        if not any(mark in text.lower() for mark in _PUBLIC_DOMAIN):
            continue
        name = re.sub(r"\s*\b\d+\b$", "", plain(html.unescape(title.group(1))).lower())
        if not 2 < len(name) < 50:
            continue
        place = str(path.relative_to(work.openclipart))
        keywords = [html.unescape(tag) for tag in dict.fromkeys(tags)][:12]
        yield Concept("clip", f"oc:{place}", f"oc/{place.rsplit('/', 1)[0]}", {"en": name}, {"en": keywords}), text


def terms(work: Work) -> Iterator[Concept]:
    """Parallel names without pictures: territories, languages, scripts, currencies, units, cities."""
    tables: dict[tuple[str, str], dict[str, str]] = {}
    for language in LANGUAGES:
        names = work.npm / "cldr-localenames-full" / "main" / language
        for kind in ("territories", "languages", "scripts"):
            table = _json(names / f"{kind}.json")["main"][language]["localeDisplayNames"][kind]
            for code, name in table.items():
                if "-alt-" not in code:
                    tables.setdefault((kind, code), {})[language] = name
        numbers = work.npm / "cldr-numbers-full" / "main" / language / "currencies.json"
        for code, entry in _json(numbers)["main"][language]["numbers"]["currencies"].items():
            if "displayName" in entry:
                tables.setdefault(("currencies", code), {})[language] = entry["displayName"]
        units = work.npm / "cldr-units-full" / "main" / language / "units.json"
        for code, entry in _json(units)["main"][language]["units"]["long"].items():
            if isinstance(entry, dict) and "displayName" in entry and not code.startswith("power"):
                tables.setdefault(("units", code), {})[language] = entry["displayName"]
        zones = _json(work.npm / "cldr-dates-full" / "main" / language / "timeZoneNames.json")
        for code, name in _cities(zones["main"][language]["dates"]["timeZoneNames"]["zone"]):
            tables.setdefault(("cities", code), {})[language] = name
    for (kind, code), labels in tables.items():
        # A code that stands for itself ("zxx", "001") is no name.
        if "en" in labels and len(labels) > 1 and labels["en"] != code:
            yield Concept("term", f"{kind}:{code}", kind, labels, {})


def _cities(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        if key == "exemplarCity":
            yield path, value
        elif isinstance(value, dict):
            yield from _cities(value, f"{path}/{key}")
