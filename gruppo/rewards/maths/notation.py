"""How one answer is written, made uniform before it is read or compared: Unicode, LaTeX styling, markdown, wording.

Pure functions from text to text, in linear time. Nothing here decides whether two answers are equal.
"""

from __future__ import annotations

import re
import unicodedata

_FRACTIONS = {sign: f" {unicodedata.normalize('NFKC', sign).replace('⁄', '/')} " for sign in "¼½¾⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
_SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ",
    "÷": "/", "∕": "/", "⁄": "/", "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ", "∛": r"\sqrt[3]", "π": r"\pi ",
    "∞": r"\infty ", "≤": "<=", "⩽": "<=", "≥": ">=", "⩾": ">=", "≠": "!=", "≈": r"\approx ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "∖": r"\setminus ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "°": " degrees ",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "φ": r"\phi ", "μ": r"\mu ", "⟨": r"\langle ",
    "⟩": r"\rangle ", "∑": r"\sum ", "∫": r"\int ", "’": "'", "‘": "'", "“": '"', "”": '"', "…": "...",
}  # fmt: skip
# NFKC would make "10²" the number 102, and "2½" the number 21/2.
_POWER = re.compile("[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ]+")
_INDEX = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_TRANSLATION = str.maketrans(_SIGNS | _FRACTIONS)

_TOKEN = re.compile(r"<\|[^|<>\n]{1,40}\|>|</?[A-Za-z_]{1,20}>")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|texttt|textnormal|mbox|hbox|mathrm|mathbf|mathit|mathsf|bm"
                   r"|boldsymbol|operatorname\*?|emph|vec|ensuremath)\s*\{([^{}]*)\}")  # fmt: skip
_SIZE = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|rm|bf)(?![A-Za-z])\.?"
    r"|\\phantom\{[^{}]*\}"
)
_SPACE = re.compile(
    r"(?<!\\)\\[ ,;:>]|\\(?:quad|qquad|enspace|thinspace|newline)(?![A-Za-z])|[~\xa0\u2000-\u200a\u202f\u3000]"
)
_DEGREES = re.compile(r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\\degree(?![A-Za-z])")
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{(.*)\}", re.DOTALL)
_MATH = re.compile(r"(?<!\\)\\[()\[\]]|\$(?!\s?[0-9.])(?<![0-9]\$)|\$\$")
_COMMA = re.compile(r"\{,\s*\}|,\\!\s*")
_PAIR = re.compile(r"\$([^$\s](?:[^$]{0,500}[^$\s])?)\$")
_LETTER_TIMES = re.compile(r"(?<=[0-9])\s*[xX]\s*(?=10\s*(?:\^|\*\*))")
_TWICE = re.compile(r"\\\\(?=[A-Za-z])")
_PERCENT = re.compile(r"(?<=[0-9})$])\s*(?:\\%|%|per ?cent(?:age)?(?: points?)?\b|pct\b\.?)\s*\$?")
_MONEY = re.compile(r"\b(?:US ?|USD|EUR|GBP|AUD|CAD|INR|Rs\.?)\s*(?=[$€£]?\s?[0-9])")
_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore|and|it|this|which)[, ]\s*)*(?:(?:the|my)\s+)?"
    r"(?:(?:final|correct|right)\s+)?(?:(?:answer|result)\s*(?:is\b|are\b|[:=])|(?:choice|option|answer)\b)[\s:=]*"
    r"|(?:about|approximately|approx\.?|roughly|around|exactly|only|just|a total of)\s+|(?:\\approx|\\sim|=)\s*"
    r"|(?:it|there|they|x)\s+(?:is|are)\s+",
    re.IGNORECASE,
)
_OPTION = re.compile(r"[(\[]?([A-Ja-j])[)\].:]?|[(\[]([A-Ja-j])[)\]]")
_LABELLED = re.compile(r"(?:[(\[]([A-Ja-j])[)\]]|([A-J])[).:])\s+(\S.*)", re.DOTALL)
_UNITS_OF_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_NUMERALS = {word: value for value, word in enumerate(_UNITS_OF_WORDS)} | {
    word: 20 + 10 * place for place, word in enumerate(_TENS)
}
_ALIASES = {
    "true": "yes", "correct": "yes", "y": "y", "false": "no", "incorrect": "no",
    "dne": "does not exist", "doesn't exist": "does not exist", "doesnt exist": "does not exist",
    "limit does not exist": "does not exist", "undefined": "undefined", "not defined": "undefined",
    "no solution": "no solutions", "no real solution": "no real solutions", "empty set": "no solutions",
    r"\emptyset": "no solutions", r"\varnothing": "no solutions", r"\{\}": "no solutions", "{}": "no solutions",
    "there are no solutions": "no solutions", "infinity": r"\infty", "+infinity": r"\infty", "inf": r"\infty",
    "-infinity": r"-\infty", "-inf": r"-\infty", r"+\infty": r"\infty", "all reals": r"\mathbb{r}",
    "all real numbers": r"\mathbb{r}", r"(-\infty,\infty)": r"\mathbb{r}", r"(-\infty,+\infty)": r"\mathbb{r}",
    "real numbers": r"\mathbb{r}",
}  # fmt: skip


def tidy(text: str) -> str:
    """The answer in one way of writing: no styling, no delimiters of formulas, no marks of markdown, plain signs."""
    text = "".join(character for character in text if unicodedata.category(character) != "Cf")
    if not text.isascii():
        text = _POWER.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[0]).replace('−', '-')}}}", text)
        text = _INDEX.sub(lambda match: f"_{{{unicodedata.normalize('NFKC', match[0])}}}", text)
        text = unicodedata.normalize("NFKC", text.translate(_TRANSLATION)).translate(_TRANSLATION)
        text = "".join(_ascii_digit(character) for character in text)
    if "<" in text:
        text = _TOKEN.sub(" ", text)
    if "\\" in text:
        text = _unstyled(text)
    text = _PAIR.sub(r" \1 ", unmarked(_COMMA.sub(",", text)))
    text = _MATH.sub(" ", text) if "$" in text or "\\" in text else text
    text = _PERCENT.sub("%", text.replace(r"\$", "$").replace(r"\%", "%"))
    text = _LETTER_TIMES.sub(r"\\times ", _MONEY.sub("", text))
    for _ in range(3):
        shorter = _LEAD.sub("", text.strip(), count=1) if _LEAD.match(text.strip()) else text
        if not shorter.strip() or shorter == text:
            break
        text = shorter
    return " ".join(unmarked(text).split())


def unmarked(text: str) -> str:
    """Without the white space, markdown and closing punctuation around it."""
    while True:
        shorter = text.strip().strip("*`").rstrip(".,;: \n").lstrip(":; \n")
        shorter = shorter.removeprefix("__").removesuffix("__") if shorter.startswith("__") else shorter
        if len(shorter) >= 2 and shorter[0] == shorter[-1] and shorter[0] in "\"'":
            shorter = shorter[1:-1]
        if len(shorter) >= 2 and shorter[0] == "$" == shorter[-1]:
            shorter = shorter.strip("$")
        if shorter == text:
            return text
        text = shorter


def _ascii_digit(character: str) -> str:
    """Digits of other scripts are digits; letters that only look alike stay what they are."""
    if character.isascii() or not character.isdecimal():
        return character
    return str(unicodedata.decimal(character))


def _unstyled(text: str) -> str:
    text = _COMMA.sub(",", text).replace(r"\!", "").replace(r"\-", "")
    if r"\begin" not in text:
        text = _TWICE.sub(r"\\", text)  # escaped once too often
    for _ in range(4):  # one in another
        text, count = _TEXT.subn(r" \1 ", text)
        if not count:
            break
    text = _DEGREES.sub(" degrees ", _SPACE.sub(" ", _SIZE.sub("", text)))
    box = _BOX.fullmatch(unmarked(_MATH.sub(" ", text)))
    return box[1] if box else text


def canonical(tidied: str) -> str:
    """What two texts that mean the same have in common: case, articles, "(B)" and "B", yes and true, "seven" and 7."""
    text = " ".join(tidied.casefold().replace('"', "").replace(r"\ ", " ").split()).rstrip(".")
    text = text.rstrip("!?") if text[-2:-1].isalpha() else text
    option = _OPTION.fullmatch(text)
    if option:
        return option[1] or option[2]
    text = re.sub(r"\b([a-z])\.(?=[a-z]\b|\s|$)", r"\1", text)
    for article in ("a ", "an ", "the "):
        text = text.removeprefix(article) if len(text) > len(article) else text
    squeezed = text.replace(" ", "") if "\\" in text else text
    return _ALIASES.get(text) or _ALIASES.get(squeezed) or numeral(text) or text


def numeral(text: str) -> str:
    """ "forty-two" as "42"; "" for what is no such word (up to ninety-nine)."""
    first, _, second = text.replace("-", " ").partition(" ")
    if first not in _NUMERALS or (second and (first not in _TENS or second not in _UNITS_OF_WORDS[1:10])):
        return ""
    return str(_NUMERALS[first] + (_NUMERALS[second] if second else 0))


def labelled(tidied: str) -> tuple[str, str] | None:
    """("b", "42") of the option "(B) 42"; None for what is not of this form."""
    match = _LABELLED.fullmatch(tidied)
    return ((match[1] or match[2]).casefold(), match[3]) if match else None
