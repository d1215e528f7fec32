"""Accounts, passwords, tokens, quotas and the audit log."""
