from .benchmarking import bench as bench
from .comparison import Comparison as Comparison
from .comparison import comparisons as comparisons
from .domainbed import export_domainbed as export_domainbed
from .page import write_report as write_report
from .results import Results as Results
from .results import group_records as group_records
from .table import tabulate as tabulate
