"""Events as columns: Arrow bodies and stored batches, their schemas, digests and selectors.

Pure: no input or output, no clock. Import the module you need; nothing is re-exported here.
"""
