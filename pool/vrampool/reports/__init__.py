"""The report of a study: what its memory and its time were spent on, in one file, and what to change."""
