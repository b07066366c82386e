"""A tool: a typed function with a docstring. It runs in a process of its own, killed after `seconds`."""

import ast
import operator

from gruppo.tools import tool

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


@tool(seconds=2)
def calculate(expression: str) -> int:
    """Compute a sum, difference or product of two whole numbers.

    expression: for example 12 * 34
    """
    match ast.parse(expression, mode="eval").body:
        case ast.BinOp(ast.Constant(int(left)), sign, ast.Constant(int(right))) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](left, right)
    raise ValueError(f"{expression!r} is no sum, difference or product")
