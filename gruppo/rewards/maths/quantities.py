"""Units and currencies: which words are units, which of them measure the same thing, and in what proportion.

Only the common ones are known. An unknown word after a number ("64 pencils") is a unit that compares with anything.
"""

from __future__ import annotations

import re
from fractions import Fraction

CURRENCIES = {"$": "dollars", "€": "euros", "£": "pounds sterling", "¥": "yen", "₹": "rupees", "¢": "cents"}
SCALES = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "thousands": 10**3, "millions": 10**6, "billions": 10**9,
}  # fmt: skip
NOT_UNITS = frozenset(
    "not no isn never nor or and minus plus times less more fewer than least most half halves third thirds quarter"
    " quarters fifth fifths over divided factorial else either if unless except but mod modulo choose to between"
    " because since then when where with without x y z equals is are was".split()
)
"""Words that would change what the number says."""

_TABLE = {
    "length": "mm millimeter millimetre:1/1000 cm centimeter centimetre:1/100 m meter metre:1 km kilometer kilometre"
    ":1000 in inch inches:127/5000 ft foot feet:381/1250 yd yard:1143/1250 mi mile:201168/125",
    "mass": "mg milligram:1/1000 g gram:1 kg kilogram:1000 lb lbs pound:45359237/100000 oz ounce:45359237/1600000",
    "time": "ms millisecond:1/1000 s sec second:1 min mins minute:60 h hr hrs hour:3600 day:86400 week:604800",
    "volume": "ml milliliter millilitre:1/1000 l liter litre:1",
    "money": "¢ cent:1/100 $ dollar usd buck:1",
    "euro": "€ euro eur:1",
    "yen": "¥ yen:1",
    "rupee": "₹ rupee inr:1",
    "sterling": "£ sterling gbp:1",
    "yuan": "yuan rmb:1",
    "angle": "deg degree:1",
    "radian": "rad radian:1",
    "celsius": "celsius:1",
    "fahrenheit": "fahrenheit:1",
    "percent": "percent:1",
    "speed": "mph:1",
    "metric speed": "kph:1",
    "energy": "j joule:1 kj kilojoule:1000",
    "force": "n newton:1",
    "power": "w watt:1 kw kilowatt:1000",
}
_UNITS = {
    name: (kind, Fraction(factor))
    for kind, text in _TABLE.items()
    for names, factor in re.findall(r"([^:0-9]+?):([0-9/]+)", text)
    for name in names.split()
}
_UNITS |= {f"{name}s": unit for name, unit in _UNITS.items() if len(name) > 2 and f"{name}s" not in _UNITS}
KNOWN = frozenset(_UNITS)


def measure(unit: str) -> tuple[str, Fraction] | None:
    """What the unit measures and how many base units it is, as ("length^2", 1/10000) for "cm^2"; None if unknown."""
    text = unit.casefold().strip()
    shape = re.fullmatch(
        r"(square|sq\.?|cubic|cu\.?)?\s*([^\s^]+?)\.?\s*(?:\^\s*\{?([1-3])\}?|(squared)|(cubed))?", text
    )
    if shape is None or shape[2] not in _UNITS:
        return None
    kind, factor = _UNITS[shape[2]]
    power = int(shape[3] or 1)
    if (shape[1] or "").startswith("sq") or shape[4]:
        power = 2
    elif shape[1] or shape[5]:
        power = 3
    return f"{kind}^{power}", factor**power
