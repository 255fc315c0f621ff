"""Experiment trackers: what the readers of their files and exports share.

* points      values logged one by one, put into the rows of a table
* values      numbers and settings as trackers spell them
* sqlitefile  a database of somebody else, read without a trace and without trust
* zips        archives, read line by line and never beyond a bound
* documents   JSON documents of a bounded size
* layouts     whose layout a table, a header or a document has, so that one reader claims it
"""
