"""The store: records, weights, snapshots and failures, in a folder or at an address."""

from afield.runs.store.folder import BusyError, Store
from afield.runs.store.remote import RemoteStore, fetch_run, open_store
from afield.runs.store.run_files import (
    read_record,
    read_run_inputs,
    read_run_weights,
    thumbnail_file,
)

__all__ = ["BusyError", "RemoteStore", "Store", "fetch_run", "open_store"]
__all__ += ["read_record", "read_run_inputs", "read_run_weights", "thumbnail_file"]
