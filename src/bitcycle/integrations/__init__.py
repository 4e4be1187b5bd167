"""Precision schedules in Lightning and Hugging Face Transformers, as callbacks."""
