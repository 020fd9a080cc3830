"""Meeting of the ranks: they find each other, prove who they are and connect. The native core only ever gets
open descriptors.
"""
