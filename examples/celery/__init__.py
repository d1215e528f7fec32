"""Celery over a realm, in a FastAPI application and in a Django project."""
