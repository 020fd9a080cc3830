"""Drivers: decisions about a job. Events go in with the time, actions come out; no clock or socket."""
