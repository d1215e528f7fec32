"""Events as columns: Arrow bodies and stored batches, their schemas, digests and selectors.

These modules do no input or output and use no clock. Import the module you need; this package
re-exports no names.
"""
