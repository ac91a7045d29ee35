"""Which runs answer a question: benchmarks, protocols, settings, features and recipes of papers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
