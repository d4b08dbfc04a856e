"""Elementwise arithmetic rules: commutativity, associativity, distributivity, signs, reciprocals, exponentials,
selection."""

from __future__ import annotations

from ..egraph.rule import Rule, table

#: Op name -> whether swapping the operands is bitwise exact. maximum and minimum are not: which of 0.0 and -0.0 they
#: return depends on the order of the operands.
COMMUTATIVE = {"add": True, "mul": True, "maximum": False, "minimum": False, "and_": True, "or_": True, "xor_": True,
               "eq": True}  # fmt: skip
ASSOCIATIVE = {"add": False, "mul": False, "maximum": True, "minimum": True, "and_": True, "or_": True}  # op: exact

COMMUTATIVITY = table("commutativity", "algebra", [
    Rule(f"{op.rstrip('_')}-commutes", f"{op}(x, y)", f"{op}(y, x)", exact=exact, doc="operands change places")
    for op, exact in COMMUTATIVE.items()
])  # fmt: skip

ASSOCIATIVITY = table("associativity", "algebra", [
    Rule(f"{op.rstrip('_')}-associates", f"{op}({op}(x, y), z)", f"{op}(x, {op}(y, z))", both=True, exact=exact,
         doc="brackets move")
    for op, exact in ASSOCIATIVE.items()
])  # fmt: skip

DISTRIBUTION = table("distribution", "algebra", [
    Rule("mul-distributes", "x * (y + z)", "x * y + x * z", both=True, growth="expands",
         doc="a factor enters a sum, or leaves it"),
    Rule("factor-one", "x * y + x", "x * (y + lit(1.0, y))", growth="collects", doc="a term is itself times one"),
    *(Rule(f"{name}-distributes", f"{op}(x + z, y + z)", f"{op}(x, y) + z", when=("floating(x)",), growth="collects",
           doc=f"a common summand leaves a {op} (ints may wrap around)") for name, op in (("max", "maximum"), ("min", "minimum"))),
    Rule("div-distributes", "(x + y) / z", "x / z + y / z", both=True, growth="expands",
         doc="a divisor enters a sum, or leaves it"),
])  # fmt: skip

SIGNS = table("signs", "algebra", [
    Rule("sub-as-add", "x - y", "x + neg(y)", both=True, exact=True,
         doc="a difference is a sum with the negated operand"),
    Rule("neg-neg", "neg(neg(x))", "x", growth="collects", exact=True, doc="two signs cancel"),
    Rule("neg-factor", "neg(x) * y", "neg(x * y)", both=True, exact=True, doc="a sign leaves a product"),
    Rule("neg-quotient", "neg(x) / y", "neg(x / y)", both=True, exact=True, doc="a sign leaves a numerator"),
    Rule("neg-sum", "neg(x) + neg(y)", "neg(x + y)", growth="collects", exact=False, doc="a sign leaves a sum"),
    Rule("neg-difference", "neg(x - y)", "y - x", growth="collects", doc="a negated difference turns round"),
    Rule("abs-neg", "abs(neg(x))", "abs(x)", when=("floating(x)",), growth="collects", exact=True, doc="absolute value forgets the sign"),
    Rule("abs-square", "abs(x) * abs(x)", "x * x", growth="collects", exact=True, doc="a square forgets the sign"),
    Rule("abs-product", "abs(x) * abs(y)", "abs(x * y)", when=("floating(x)",), growth="collects", exact=True,
         doc="absolute value of a product"),
    Rule("tanh-odd", "tanh(neg(x))", "neg(tanh(x))", both=True, doc="tanh is odd"),
    Rule("erf-odd", "erf(neg(x))", "neg(erf(x))", both=True, doc="erf is odd"),
    Rule("sin-odd", "sin(neg(x))", "neg(sin(x))", both=True, doc="sine is odd"),
    Rule("cos-even", "cos(neg(x))", "cos(x)", growth="collects", doc="cosine is even"),
    Rule("max-neg", "maximum(neg(x), neg(y))", "neg(minimum(x, y))", when=("floating(x)",), both=True,
         doc="a sign turns a maximum into a minimum"),
])  # fmt: skip

QUOTIENTS = table("quotients", "algebra", [
    Rule("div-as-mul", "x / y", "x * recip(y)", both=True, doc="dividing is multiplying by the reciprocal"),
    Rule("recip-product", "recip(x) * recip(y)", "recip(x * y)", growth="collects", doc="one reciprocal for two"),
    Rule("recip-quotient", "recip(x / y)", "y / x", growth="collects", doc="a reciprocal turns a quotient round"),
    Rule("div-div", "(x / y) / z", "x / (y * z)", growth="collects", doc="one division for two"),
    Rule("recip-sqrt", "recip(sqrt(x))", "rsqrt(x)", both=True, doc="the reciprocal square root"),
    Rule("div-sqrt", "x / sqrt(y)", "x * rsqrt(y)", shortcut=True, growth="collects",
         doc="dividing by a root is multiplying by the reciprocal root"),
    Rule("sqrt-of-square", "sqrt(x * x)", "abs(x)", growth="collects", doc="the square's root"),
])  # fmt: skip

EXPONENTIALS = table("exponentials", "algebra", [
    Rule("exp-product", "exp(x) * exp(y)", "exp(x + y)", growth="collects", doc="one exponential for two"),
    Rule("exp-quotient", "exp(x) / exp(y)", "exp(x - y)", growth="collects", doc="one exponential for a quotient"),
    Rule("exp-recip", "recip(exp(x))", "exp(neg(x))", growth="collects", doc="a reciprocal exponential"),
    Rule("log-exp", "log(exp(x))", "x", growth="collects", doc="logarithm undoes the exponential"),
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
    Rule("add-zero", "x + 0.0", "x", growth="collects", doc="adding nothing (-0.0 + 0.0 is 0.0: not exact)"),
    Rule("mul-one", "x * 1.0", "x", growth="collects", exact=True, doc="multiplying by one"),
    Rule("sub-zero", "x - 0.0", "x", growth="collects", exact=True, doc="taking nothing away"),
    Rule("div-one", "x / 1.0", "x", growth="collects", exact=True, doc="dividing by one"),
    Rule("mul-minus-one", "x * -1.0", "neg(x)", when=("floating(x)",), growth="collects", exact=True, doc="minus one is a sign"),
    Rule("double", "x + x", "x * lit(2.0, x)", exact=True, doc="twice the same"),
])  # fmt: skip

SELECTION = table("selection", "algebra", [
    Rule("max-idempotent", "maximum(x, x)", "x", growth="collects", exact=True, doc="the larger of two equals"),
    Rule("min-idempotent", "minimum(x, x)", "x", growth="collects", exact=True, doc="the smaller of two equals"),
    Rule("and-idempotent", "and_(x, x)", "x", growth="collects", exact=True, doc="a condition twice"),
    Rule("or-idempotent", "or_(x, x)", "x", growth="collects", exact=True, doc="a condition twice"),
    Rule("where-same", "where(c, x, x)", "x", when=("fits(c, x)",), growth="collects", exact=True,
         doc="both branches are one"),
    Rule("where-not", "where(not_(c), x, y)", "where(c, y, x)", when=("dtype(c) == 'bool'",), growth="collects", exact=True,
         doc="a negated condition swaps the branches"),
    Rule("not-not", "not_(not_(c))", "c", when=("dtype(c) == 'bool'",), growth="collects", exact=True, doc="two negations cancel"),
    Rule("de-morgan", "and_(not_(x), not_(y))", "not_(or_(x, y))", when=("dtype(x) == 'bool'", "dtype(y) == 'bool'"), both=True, exact=True,
         doc="neither is not either"),
    Rule("where-factor", "where(c, x * z, y * z)", "where(c, x, y) * z", growth="collects", exact=True,
         doc="a common factor leaves the branches"),
    Rule("where-summand", "where(c, x + z, y + z)", "where(c, x, y) + z", growth="collects", exact=True,
         doc="a common summand leaves the branches"),
    Rule("relu-as-max", "maximum(x, 0.0)", "relu(x)", when=("floating(x)",), growth="collects", exact=True,
         doc="the rectifier is a maximum with zero"),
    Rule("mask-twice", "cast(c, dtype=d) * cast(c, dtype=d)", "cast(c, dtype=d)", when=("dtype(c) == 'bool'",),
         growth="collects", exact=True, doc="a mask of zeros and ones, applied twice"),
    Rule("relu-mask", "relu(cast(c, dtype=d))", "cast(c, dtype=d)", when=("dtype(c) == 'bool'",), growth="collects", exact=True,
         doc="zeros and ones are not negative"),
    Rule("relu-masked", "relu(x * cast(c, dtype=d))", "relu(x) * cast(c, dtype=d)", when=("dtype(c) == 'bool'",), both=True,
         doc="a mask of zeros and ones moves past the rectifier"),
    Rule("relu-square", "relu(x * x)", "x * x", growth="collects", exact=True, doc="a square is not negative"),
    Rule("relu-one", "relu(full(value=1.0, shape=s, dtype=d))", "full(value=1.0, shape=s, dtype=d)", growth="collects", exact=True,
         doc="one is positive"),
    *(Rule(f"relu-of-{name}", f"relu({term})", term, growth="collects", doc="what is made of rectified values is not negative")
      for name, term in (("sum", "relu(x) + relu(y)"), ("product", "relu(x) * relu(y)"), ("matmul", "relu(x) @ relu(y)"),
                         ("mean", "avg_pool(relu(x), kernel=k, strides=s, pads=p, dilations=d)"),
                         ("conv", "conv(relu(x), relu(w), strides=s, pads=p, dilations=d, groups=g)"))),
    *(Rule(f"relu-of-{name}", f"relu({name}(x))", f"{name}(x)", growth="collects", exact=True,
           doc="what is never negative is not changed by the rectifier") for name in ("sigmoid", "exp", "abs")),
    Rule("relu-doubled", "relu(x) + relu(x)", "relu(x + x)", growth="collects", exact=True, doc="twice a rectified value"),
    Rule("relu-relu", "relu(relu(x))", "relu(x)", growth="collects", exact=True, doc="rectified once is enough"),
    Rule("relu-as-where", "where(lt(0.0, x), x, full(value=0.0, shape=s, dtype=d))", "relu(x)",
         when=("floating(x)", "s == ones(rank(x))"), growth="collects",
         doc="the rectifier as a selection (NaN excepted)"),
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
