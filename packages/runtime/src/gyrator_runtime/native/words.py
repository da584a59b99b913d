"""The numbers that plans in words are made of; plan.h has them, too."""

EXPR_OPS = (
    "arg", "const", "add", "sub", "mul", "floordiv", "mod", "min", "max",
    "eq", "ne", "lt", "le", "unless", "skip",
)  # fmt: skip
"""Names of the operations of a `SizeProgram`; the index is the native number."""

EXPR_DEPTH = 64
"""Deepest stack of a `SizeProgram`."""

END, LOAD_INT, EVAL, LAUNCH, CALL_TUPLE, CALL, DROP, GET_ITEM, RETURN, MOVE = range(10)
OPERATE, CONFORM, SEPARATE = range(10, 13)
ARG_REG, ARG_CONST, ARG_INT, ARG_INT_TUPLE = range(4)
DIRECT_TENSORS = (3, 4)
"""Numbers of tensors of an operator that runs without Python; of four, the numbers are two."""
MOST_DIMS = 8
"""Most dimensions of a tensor that is made for an operator without Python."""
MOST_WORDS = 192
"""Most offsets, sizes and strides of one operator."""
