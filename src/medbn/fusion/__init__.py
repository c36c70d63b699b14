"""BatchNorm, addition and ReLU in one kernel: ``medbn.convert(model, fuse=True)``.

``trace`` finds, in the forward of a module, robust layers that a ReLU follows, and writes the same forward with one
call for both. ``module`` lets a module run it, and ``layer`` is that call: one kernel where there is one (Triton's),
and the operations of the original elsewhere.
"""

from .module import class_of, find, fuse, fused_layers, unfuse

__all__ = ["class_of", "find", "fuse", "fused_layers", "unfuse"]
