"""Commands and facts of the core, a module for each subject.

Commands are imperative, facts in the past tense. Facts are all that is ever stored: the names and
the order of their fields are a format. Bytes travel beside a command: the core sees a ``Digest``.
Times are microseconds since 1970 (``_us``) or ``_ms``.
"""
