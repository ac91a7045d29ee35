from .benchmark import Benchmark as Benchmark
from .benchmark import make_benchmark as make_benchmark
from .benchmark import read_benchmark as read_benchmark
from .benchmarking import train as train
from .features import embed as embed
from .planning import method_runs as method_runs
from .protocol import Protocol as Protocol
