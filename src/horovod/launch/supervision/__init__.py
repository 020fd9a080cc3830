"""Watches a job: which rank failed first, and when the others are ended."""
