"""The rules of a realm, requests, columns and the native protocol's codec, without I/O.

The rules are pure, synchronous and deterministic. They decide facts from commands, apply the facts,
and return effects:

    command --decide--> facts --apply--> state --offer--> effects

``decide`` reads state and never writes it. ``apply`` writes state and never decides.
Recovery is ``apply`` over the stored facts; there is no second code path for it.
"""
