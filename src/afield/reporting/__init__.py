"""From records to tables and one report page; functions of files only."""
