"""Elementwise functions of a tensor as polynomials, so that two spellings of one formula are equal.

``0.5 * x * (1 + erf(x / sqrt(2)))`` and ``(torch.erf(x * 0.70710678) + 1) * x / 2`` are both the polynomial
``0.5 * x + 0.5 * x * erf(0.70710678 * x)``. Only sums, products and whole powers are worked out; every other function
stays as it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# A product of powers of functions: {(("erf", (argument,)), 1), (("x", ()), 2)}.
Function = tuple[str, tuple["Polynomial", ...]]
Monomial = frozenset[tuple[Function, int]]
_ONE: Monomial = frozenset()


class Polynomial:
    """A sum of monomials with coefficients. Those that are 0 are kept, as 0 * x is NaN where x is."""

    def __init__(self, terms: dict[Monomial, float]) -> None:
        self.terms = terms

    @classmethod
    def number(cls, value: float) -> Polynomial:
        """A constant."""
        return cls({_ONE: float(value)})

    @classmethod
    def function(cls, name: str, *arguments: Polynomial) -> Polynomial:
        """A function that is not worked out; a variable is one without arguments."""
        if name == "reciprocal" and (exponent := arguments[0]._logistic_exponent()):
            return cls.function("sigmoid", exponent.scaled(-1))
        return cls({frozenset({((name, arguments), 1)}): 1.0})

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        a, b = terms.get(_ONE, 0.0), other.terms.get(_ONE, 0.0)
        if abs(a + b) < 0.01 * max(abs(a), abs(b)) and max(abs(a), abs(b)) > 1000:
            return Polynomial.function("rounded", self, other)  # as x + 1.5 * 2**23 - 1.5 * 2**23 is
        for monomial, coefficient in other.terms.items():
            terms[monomial] = terms.get(monomial, 0.0) + coefficient
        if len(terms) > 1 and terms.get(_ONE) == 0.0:
            del terms[_ONE]
        return Polynomial(terms)

    def __mul__(self, other: Polynomial) -> Polynomial:
        product = Polynomial({})
        for a, x in self.terms.items():
            for b, y in other.terms.items():
                product += Polynomial({_product(a, b): x * y})
        return product

    def scaled(self, factor: float) -> Polynomial:
        """This times a number."""
        return Polynomial({monomial: coefficient * factor for monomial, coefficient in self.terms.items()})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    @property
    def constant(self) -> float | None:
        """Its value, if it is a constant."""
        return self.terms[_ONE] if set(self.terms) == {_ONE} else None

    @property
    def single(self) -> Function | None:
        """The function, if it is one and nothing else."""
        if len(self.terms) == 1:
            ((monomial, coefficient),) = self.terms.items()
            if coefficient == 1.0 and len(monomial) == 1:
                ((function, power),) = monomial
                return function if power == 1 else None
        return None

    def numbers(self) -> Iterator[float]:
        """The coefficients at every depth."""
        for monomial, coefficient in self.terms.items():
            yield coefficient
            for (_, arguments), _ in monomial:
                for argument in arguments:
                    yield from argument.numbers()

    def names(self) -> Iterator[str]:
        """The names of the functions at every depth."""
        for monomial in self.terms:
            for (name, arguments), _ in monomial:
                yield name
                for argument in arguments:
                    yield from argument.names()

    def key(self, digits: int) -> tuple[Any, ...]:
        """The same for polynomials whose numbers agree to that many digits."""
        terms = []
        for monomial, coefficient in self.terms.items():
            factors = [(name, tuple(a.key(digits) for a in arguments), n) for (name, arguments), n in monomial]
            terms.append((tuple(sorted(factors, key=repr)), f"{coefficient:.{digits - 1}e}"))
        return tuple(sorted(terms, key=repr))

    def _logistic_exponent(self) -> Polynomial | None:
        """u, if this is 1 + exp(u)."""
        rest = Polynomial({monomial: coefficient for monomial, coefficient in self.terms.items() if monomial != _ONE})
        if self.terms.get(_ONE) == 1.0 and rest.single and rest.single[0] == "exp":
            return rest.single[1][0]
        return None


def _product(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for function, power in b:
        powers[function] = powers.get(function, 0) + power
    return frozenset(powers.items())


X = Polynomial.function("x")
