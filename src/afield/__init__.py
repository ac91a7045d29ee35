"""afield: domain generalization in PyTorch. Trained at home, tested afield.

>>> import afield
>>> "vrex" in afield.names("methods")
True

The public names are listed in ``__init__.pyi``, here and in every room. They are imported when they
are first used, so that ``afield --help`` starts at once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
