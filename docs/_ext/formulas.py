"""The formulas of src/activations/table.h as LaTeX."""

from __future__ import annotations

import ast

_GREEK = {"lambd": r"\lambda", "sigmoid": r"\sigma"} | {
    name: rf"\{name}" for name in ("alpha", "beta", "omega", "Phi", "pi")
}
_COMPARISONS = {ast.Gt: ">", ast.Lt: "<", ast.LtE: r"\le", ast.GtE: r"\ge"}
_SUM, _PRODUCT, _POWER = 1, 2, 3  # how tightly an operator binds


def latex(formula: str) -> str:
    """The formula as LaTeX; what follows in words (", Phi the ...") stays words."""
    formula, comma, words = formula.partition(", Phi ")
    if ", else " in formula:  # "a if b, c if d, else e" is Python's "a if b else c if d else e"
        formula = formula.replace(", else ", " else ").replace(", ", " else ")
    text = _expression(ast.parse(formula.replace("^", "**"), mode="eval").body, 0)
    return text + (rf",\quad \Phi \text{{ {words}}}" if comma else "")


def _expression(node: ast.expr, outer: int) -> str:
    match node:
        case ast.Name(name):
            return _GREEK.get(name, name if len(name) == 1 else rf"\text{{{name}}}".replace("_", r"\_"))
        case ast.Constant(value):
            return str(value)
        case ast.UnaryOp(ast.USub(), operand):
            return "-" + _expression(operand, _PRODUCT)
        case ast.Compare(left, [operator], [right]):
            return f"{_expression(left, 0)} {_COMPARISONS[type(operator)]} {_expression(right, 0)}"
        case ast.IfExp():
            return _cases(node)
        case ast.Call(ast.Name(name), arguments):
            return _call(name, arguments)
        case ast.BinOp(left, operator, right):
            return _operation(left, operator, right, outer)
    raise ValueError(f"no LaTeX for {ast.unparse(node)}")


def _operation(left: ast.expr, operator: ast.operator, right: ast.expr, outer: int) -> str:
    match operator:
        case ast.Div():
            return rf"\frac{{{_expression(left, 0)}}}{{{_expression(right, 0)}}}"
        case ast.Pow():
            return f"{_expression(left, _POWER)}^{{{_expression(right, 0)}}}"
        case ast.Mult():
            dot = r" \cdot " if isinstance(left, ast.Constant) and isinstance(right, ast.Constant) else r" \, "
            text, binds = _expression(left, _PRODUCT) + dot + _expression(right, _PRODUCT), _PRODUCT
        case ast.Add():
            text, binds = f"{_expression(left, 0)} + {_expression(right, 0)}", _SUM
        case ast.Sub():
            text, binds = f"{_expression(left, 0)} - {_expression(right, _PRODUCT)}", _SUM
        case _:
            raise ValueError(f"no LaTeX for the operator {operator}")
    return rf"\left({text}\right)" if binds < outer else text


def _call(name: str, arguments: list[ast.expr]) -> str:
    inner = [_expression(argument, 0) for argument in arguments]
    match name:
        case "exp":
            return f"e^{{{inner[0]}}}"
        case "sqrt":
            return rf"\sqrt{{{inner[0]}}}"
        case "abs":
            return rf"\left|{inner[0]}\right|"
        case "min" | "max" | "log" | "sin" | "tanh":
            return rf"\{name}\left({', '.join(inner)}\right)"
        case "sigmoid" | "Phi":
            return rf"{_GREEK[name]}\left({', '.join(inner)}\right)"
    raise ValueError(f"no LaTeX for the function {name}")


def _cases(node: ast.expr) -> str:
    rows = []
    while isinstance(node, ast.IfExp):
        rows.append(rf"{_expression(node.body, 0)} & \text{{if }} {_expression(node.test, 0)}")
        node = node.orelse
    rows.append(rf"{_expression(node, 0)} & \text{{else}}")
    return r"\begin{cases}" + r" \\ ".join(rows) + r"\end{cases}"
