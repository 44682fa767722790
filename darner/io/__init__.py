"""Files and memory, as the system gives them; nothing here knows a graph's meaning.

atomic      files that are replaced whole or not at all
reading     files that others wrote: opened once, read by position, with limits
tensorfile  the safetensors format
memory      the process's memory for values: aligned, in large pages, given back
"""
