"""Texts in the place of a question that are none: what data sets written by programs and models are spoilt with.

Questions in which somebody is sorry are questions: a text is judged by how it begins, or as a whole.
"""

from __future__ import annotations

import re

from gruppo.data.answer_text import normalised

_CANNOT = r"(?:cannot|can not|can't|could not|couldn't|unable to|not able to|won't|will not)"
_DOES = r"(?:make|create|generate|provide|help|assist|answer|comply|solve|complete|write|produce|fulfil|do that|access)"
_REPLY = re.compile(
    rf"(?:i'm|i am|we're|we are)?\s*(?:so |very |really |truly )?(?:sorry|afraid)\b[^.?!\n]{{0,60}}?\b{_CANNOT}"
    rf"|(?:unfortunately,? )?(?:i|we)(?: am|'m| are|'re)? {_CANNOT} (?:\w+ )?{_DOES}\b"
    r"|(?:my )?apologies\b|i apologi[sz]e\b|as an ai\b|as a (?:large )?language model\b"
    r"|i (?:don't|do not) have (?:access|enough|the ability)\b"
    r"|(?:sure|certainly|of course|absolutely)[,!.][^?\n]{0,40}\b(?:here (?:is|are)|here's|i (?:can|will|would)|i'd)\b"
    r"|here (?:is|are) (?:a|an|the|some|your) (?:rewritten|revised|new|modified|possible|synthetic)\b"
)
_PLACEHOLDER = re.compile(
    r"(?:null|nan|none|n/?a|todo|tbd|undefined|test|placeholder|lorem ipsum.*|insert .{0,30} here|<[^<>]*>|\{[^{}]*\}"
    r"|\[?(?:deleted|removed|missing|redacted|image|figure|problem|question)\]?)[.!?]?",
    re.DOTALL,
)
_ADDRESS = re.compile(r"(?:https?://|www\.)\S+")
_ERROR = re.compile(
    r"(?:\w*error|\w*exception|traceback)\b(?: \(most|:)|<!doctype|<html"
    r"|(?:http |error )?(?:40[0-9]|50[0-9])\b.{0,40}\b(?:error|not found|forbidden|unavailable|too many requests)"
)


def not_a_question(question: str) -> str:
    """Why a text is no question, "" if it may be one: a chatbot's refusal or preamble, a placeholder, an address, an
    error message, or no words at all."""
    text = normalised(question).replace("\u2019", "'").strip(" \"'\u201c\u201d\u2018`*")
    if _REPLY.match(text):
        return "a chatbot's reply"
    if _PLACEHOLDER.fullmatch(text):
        return "a placeholder"
    if _ADDRESS.fullmatch(text):
        return "an address"
    if _ERROR.match(text):
        return "an error message"
    return "" if re.search(r"[^\W_]", text) else "no words"
