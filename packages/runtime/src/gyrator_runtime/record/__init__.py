"""Recording a host program: the calls of its text become a plan that runs natively.

The text that `gyrator_wrapper_python` writes defines `build(rt)`, which runs once, when a program
is loaded. `rt` is a `HostRuntime`; `rt.program(...)` gives a `Recorder` whose methods are the
instructions of the Wrapper IR, a family a module. Handles stand for tensors, `Size` values for
integers.
"""

from gyrator_runtime.record.recorder import HostRuntime, Recorder
from gyrator_runtime.record.values import AnySize, Handle, LoadedKernel, Recorded, Size

__all__ = ["AnySize", "Handle", "HostRuntime", "LoadedKernel", "Recorded", "Recorder", "Size"]
