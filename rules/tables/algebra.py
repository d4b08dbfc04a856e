"""Lists elementwise arithmetic rules.

Commutativity, associativity, distributivity, signs, reciprocals, exponentials, selection.
"""

from __future__ import annotations

from ...egraph.patterns.rule import Rule, table

#: Op name -> whether swapping the operands is bitwise exact. maximum and minimum are not: which of 0.0 and -0.0 they
#: return depends on the order of the operands.
COMMUTATIVE = {"add": True, "mul": True, "maximum": False, "minimum": False, "and_": True, "or_": True, "xor_": True,
               "eq": True}  # fmt: skip
ASSOCIATIVE = {"add": False, "mul": False, "maximum": True, "minimum": True, "and_": True, "or_": True}  # op: exact

COMMUTATIVITY = table("commutativity", "algebra", [
    Rule(f"{op.rstrip('_')}-commutes", f"{op}(x, y)", f"{op}(y, x)", exact=exact, doc="commutativity")
    for op, exact in COMMUTATIVE.items()
])  # fmt: skip

ASSOCIATIVITY = table("associativity", "algebra", [
    Rule(f"{op.rstrip('_')}-associates", f"{op}({op}(x, y), z)", f"{op}(x, {op}(y, z))", both=True, exact=exact,
         doc="associativity")
    for op, exact in ASSOCIATIVE.items()
])  # fmt: skip

DISTRIBUTION = table("distribution", "algebra", [
    Rule("mul-distributes", "x * (y + z)", "x * y + x * z", both=True, growth="expands",
         doc="multiplication distributes over a sum"),
    Rule("factor-one", "x * y + x", "x * (y + lit(1.0, y))", growth="collects", doc="x is x * 1, so the common factor can be pulled out"),
    *(Rule(f"{name}-distributes", f"{op}(x + z, y + z)", f"{op}(x, y) + z", when=("floating(x)",), growth="collects",
           doc=f"a common summand is pulled out of a {op} (floats only: ints may wrap around)") for name, op in (("max", "maximum"), ("min", "minimum"))),
    Rule("div-distributes", "(x + y) / z", "x / z + y / z", both=True, growth="expands",
         doc="division distributes over a sum"),
])  # fmt: skip

SIGNS = table("signs", "algebra", [
    Rule("sub-as-add", "x - y", "x + neg(y)", both=True, exact=True,
         doc="a difference is a sum with the negated operand"),
    Rule("neg-neg", "neg(neg(x))", "x", growth="collects", exact=True, doc="double negation cancels"),
    Rule("neg-factor", "neg(x) * y", "neg(x * y)", both=True, exact=True, doc="a negation is pulled out of a product"),
    Rule("neg-quotient", "neg(x) / y", "neg(x / y)", both=True, exact=True, doc="a negation is pulled out of a numerator"),
    Rule("neg-sum", "neg(x) + neg(y)", "neg(x + y)", growth="collects", exact=False, doc="a negation is pulled out of a sum"),
    Rule("neg-difference", "neg(x - y)", "y - x", growth="collects", doc="the negation of a difference swaps its operands"),
    Rule("abs-neg", "abs(neg(x))", "abs(x)", when=("floating(x)",), growth="collects", exact=True, doc="abs ignores the sign"),
    Rule("abs-square", "abs(x) * abs(x)", "x * x", growth="collects", exact=True, doc="a square ignores the sign"),
    Rule("abs-product", "abs(x) * abs(y)", "abs(x * y)", when=("floating(x)",), growth="collects", exact=True,
         doc="absolute value of a product"),
    Rule("tanh-odd", "tanh(neg(x))", "neg(tanh(x))", both=True, doc="tanh is odd"),
    Rule("erf-odd", "erf(neg(x))", "neg(erf(x))", both=True, doc="erf is odd"),
    Rule("sin-odd", "sin(neg(x))", "neg(sin(x))", both=True, doc="sine is odd"),
    Rule("cos-even", "cos(neg(x))", "cos(x)", growth="collects", doc="cosine is even"),
    Rule("max-neg", "maximum(neg(x), neg(y))", "neg(minimum(x, y))", when=("floating(x)",), both=True,
         doc="negation turns a maximum into a minimum"),
])  # fmt: skip

QUOTIENTS = table("quotients", "algebra", [
    Rule("div-as-mul", "x / y", "x * recip(y)", both=True, doc="dividing is multiplying by the reciprocal"),
    Rule("recip-product", "recip(x) * recip(y)", "recip(x * y)", growth="collects", doc="two reciprocals are combined into one"),
    Rule("recip-quotient", "recip(x / y)", "y / x", growth="collects", doc="the reciprocal of a quotient swaps its operands"),
    Rule("div-div", "(x / y) / z", "x / (y * z)", growth="collects", doc="two divisions are combined into one"),
    Rule("recip-sqrt", "recip(sqrt(x))", "rsqrt(x)", both=True, doc="the reciprocal square root"),
    Rule("div-sqrt", "x / sqrt(y)", "x * rsqrt(y)", shortcut=True, growth="collects",
         doc="dividing by a root is multiplying by the reciprocal root"),
    Rule("sqrt-of-square", "sqrt(x * x)", "abs(x)", growth="collects", doc="the square root of a square is the absolute value"),
])  # fmt: skip

EXPONENTIALS = table("exponentials", "algebra", [
    Rule("exp-product", "exp(x) * exp(y)", "exp(x + y)", growth="collects", doc="two exponentials are combined into one"),
    Rule("exp-quotient", "exp(x) / exp(y)", "exp(x - y)", growth="collects", doc="a quotient of exponentials is one exponential"),
    Rule("exp-recip", "recip(exp(x))", "exp(neg(x))", growth="collects", doc="the reciprocal of an exponential"),
    Rule("log-exp", "log(exp(x))", "x", growth="collects", doc="log is the inverse of exp"),
])  # fmt: skip

POWERS = table("powers", "algebra", [
    Rule("power-one", "pow(x, 1.0)", "x", growth="collects", doc="the first power"),
    Rule("power-two", "pow(x, 2.0)", "x * x", growth="collects", doc="the square"),
    Rule("power-three", "pow(x, 3.0)", "x * x * x", growth="collects", doc="the cube"),
    Rule("power-half", "pow(x, 0.5)", "sqrt(x)", growth="collects", doc="the square root"),
    Rule("power-minus-half", "pow(x, -0.5)", "rsqrt(x)", growth="collects", doc="the reciprocal square root"),
    Rule("power-minus-one", "pow(x, -1.0)", "recip(x)", when=("floating(x)",), growth="collects", doc="the reciprocal"),
])  # fmt: skip

CONSTANTS = table("constants", "algebra", [
    Rule("add-zero", "x + 0.0", "x", growth="collects", doc="adding zero (not exact: -0.0 + 0.0 is 0.0)"),
    Rule("mul-one", "x * 1.0", "x", growth="collects", exact=True, doc="multiplying by one"),
    Rule("sub-zero", "x - 0.0", "x", growth="collects", exact=True, doc="subtracting zero"),
    Rule("div-one", "x / 1.0", "x", growth="collects", exact=True, doc="dividing by one"),
    Rule("mul-minus-one", "x * -1.0", "neg(x)", when=("floating(x)",), growth="collects", exact=True, doc="multiplying by -1 is a negation"),
    Rule("double", "x + x", "x * lit(2.0, x)", exact=True, doc="x + x is 2 * x"),
])  # fmt: skip

SELECTION = table("selection", "algebra", [
    Rule("max-idempotent", "maximum(x, x)", "x", growth="collects", exact=True, doc="maximum is idempotent"),
    Rule("min-idempotent", "minimum(x, x)", "x", growth="collects", exact=True, doc="minimum is idempotent"),
    Rule("and-idempotent", "and_(x, x)", "x", growth="collects", exact=True, doc="logical ops are idempotent"),
    Rule("or-idempotent", "or_(x, x)", "x", growth="collects", exact=True, doc="logical ops are idempotent"),
    Rule("where-same", "where(c, x, x)", "x", when=("fits(c, x)",), growth="collects", exact=True,
         doc="both branches are equal"),
    Rule("where-not", "where(not_(c), x, y)", "where(c, y, x)", when=("dtype(c) == 'bool'",), growth="collects", exact=True,
         doc="a negated condition swaps the branches"),
    Rule("not-not", "not_(not_(c))", "c", when=("dtype(c) == 'bool'",), growth="collects", exact=True, doc="double negation cancels"),
    Rule("de-morgan", "and_(not_(x), not_(y))", "not_(or_(x, y))", when=("dtype(x) == 'bool'", "dtype(y) == 'bool'"), both=True, exact=True,
         doc="De Morgan's law"),
    Rule("where-factor", "where(c, x * z, y * z)", "where(c, x, y) * z", growth="collects", exact=True,
         doc="a common factor is pulled out of the branches"),
    Rule("where-summand", "where(c, x + z, y + z)", "where(c, x, y) + z", growth="collects", exact=True,
         doc="a common summand is pulled out of the branches"),
    Rule("relu-as-max", "maximum(x, 0.0)", "relu(x)", when=("floating(x)",), growth="collects", exact=True,
         doc="relu is a maximum with zero"),
    Rule("mask-twice", "cast(c, dtype=d) * cast(c, dtype=d)", "cast(c, dtype=d)", when=("dtype(c) == 'bool'",),
         growth="collects", exact=True, doc="a mask of zeros and ones is idempotent"),
    Rule("relu-mask", "relu(cast(c, dtype=d))", "cast(c, dtype=d)", when=("dtype(c) == 'bool'",), growth="collects", exact=True,
         doc="a mask of zeros and ones is nonnegative"),
    Rule("relu-masked", "relu(x * cast(c, dtype=d))", "relu(x) * cast(c, dtype=d)", when=("dtype(c) == 'bool'",), both=True,
         doc="a mask of zeros and ones commutes with relu"),
    Rule("relu-square", "relu(x * x)", "x * x", growth="collects", exact=True, doc="a square is nonnegative"),
    Rule("relu-one", "relu(full(value=1.0, shape=s, dtype=d))", "full(value=1.0, shape=s, dtype=d)", growth="collects", exact=True,
         doc="one is positive"),
    *(Rule(f"relu-of-{name}", f"relu({term})", term, growth="collects", doc="a value computed from nonnegative values by sums and products is nonnegative")
      for name, term in (("sum", "relu(x) + relu(y)"), ("product", "relu(x) * relu(y)"), ("matmul", "relu(x) @ relu(y)"),
                         ("mean", "avg_pool(relu(x), kernel=k, strides=s, pads=p, dilations=d)"),
                         ("conv", "conv(relu(x), relu(w), strides=s, pads=p, dilations=d, groups=g)"))),
    *(Rule(f"relu-of-{name}", f"relu({name}(x))", f"{name}(x)", growth="collects", exact=True,
           doc="relu does not change a nonnegative value") for name in ("sigmoid", "exp", "abs")),
    Rule("relu-doubled", "relu(x) + relu(x)", "relu(x + x)", growth="collects", exact=True, doc="twice a nonnegative value"),
    Rule("relu-relu", "relu(relu(x))", "relu(x)", growth="collects", exact=True, doc="relu is idempotent"),
    Rule("relu-as-where", "where(le(x, 0.0), full(value=0.0, shape=s, dtype=d), x)", "relu(x)",
         when=("floating(x)", "s == ones(rank(x))"), growth="collects",
         doc="relu as a select (of where(lt(0.0, x), x, 0.0), NaN is 0)"),
    Rule("abs-as-max", "maximum(x, neg(x))", "abs(x)", when=("floating(x)",), growth="collects",
         doc="the larger of a value and its negative"),
])  # fmt: skip

RULES = (
    *COMMUTATIVITY,
    *ASSOCIATIVITY,
    *DISTRIBUTION,
    *SIGNS,
    *QUOTIENTS,
    *EXPONENTIALS,
    *POWERS,
    *CONSTANTS,
    *SELECTION,
)
