from .diagnostic import diagnose as diagnose
from .diagnostic import Diagnostic as Diagnostic
from .diagnostic import Finding as Finding
