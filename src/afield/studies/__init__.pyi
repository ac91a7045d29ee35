from .benchmark import Benchmark as Benchmark
from .benchmark import make_benchmark as make_benchmark
from .benchmark import read_benchmark as read_benchmark
from .benchmarking import train as train
from .features import embed as embed
from .protocol import hold_out as hold_out
from .protocol import leave_one_out as leave_one_out
