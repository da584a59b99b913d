"""Numeric codes of encoded plans. They must agree with plan.h."""

EXPR_OPS = (
    "arg", "const", "add", "sub", "mul", "floordiv", "mod", "min", "max",
    "eq", "ne", "lt", "le", "unless", "skip",
)  # fmt: skip
"""Names of the operations of a `SizeProgram`, indexed by their codes."""

EXPR_DEPTH = 64
"""Maximum stack depth of a `SizeProgram`."""

END, LOAD_INT, EVAL, LAUNCH, CALL_TUPLE, CALL, DROP, GET_ITEM, RETURN, MOVE = range(10)
OPERATE, CONFORM, SEPARATE = range(10, 13)
ARG_REG, ARG_CONST, ARG_INT, ARG_INT_TUPLE = range(4)
DIRECT_TENSORS = (3, 4)
"""Tensor counts of operators that run without Python. Those of four tensors have two numbers."""
MAX_DIMS = 8
"""Maximum rank of a tensor that is created for an operator without Python."""
MAX_WORDS = 192
"""Maximum number of offsets, sizes and strides of one operator."""
