"""Commands and facts of the core, one module for each subject.

Commands are imperative, facts are in the past tense. Facts are all that is ever stored: the names
and the order of their fields are a format. The bytes of events travel separately from a command;
the core sees a ``Digest`` of them. Times are microseconds since 1970 (``_us``) or milliseconds
(``_ms``).
"""
